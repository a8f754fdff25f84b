// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Pods carry no field managers, which would double the cost of each write, except Pods
// to which somebody applies server-side: what that manager stops applying is removed,
// after an update too.
func TestFieldManagersOfThoseWhoApply(t *testing.T) {
	s := running(t, "plain")
	for _, pod := range s.pods() {
		if len(pod.ManagedFields) > 0 {
			t.Errorf("Pod %s has managed fields of %s", pod.Name, pod.ManagedFields[0].Manager)
		}
	}
	const theirs = "example.com/theirs"
	name := s.pods()[0].Name
	apply := func(labels map[string]any) {
		t.Helper()
		pod := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"namespace": s.Namespace, "name": name, "labels": labels},
		}}
		s.Must(s.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(pod), client.FieldOwner(theirs)))
	}
	apply(map[string]any{theirs: "1"})
	s.image("web:v2")
	s.settled(3)
	for _, pod := range s.pods() {
		applies := slices.ContainsFunc(pod.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
			return e.Operation == metav1.ManagedFieldsOperationApply && e.Manager == theirs
		})
		if applies != (pod.Name == name) || (len(pod.ManagedFields) > 0) != applies {
			t.Errorf("Pod %s: %d managers, somebody applies: %v", pod.Name, len(pod.ManagedFields), applies)
		}
	}
	apply(nil)
	s.until("the label to go that is no longer applied", func() bool {
		return !slices.ContainsFunc(s.pods(), func(p corev1.Pod) bool { return p.Labels[theirs] != "" })
	})
}
