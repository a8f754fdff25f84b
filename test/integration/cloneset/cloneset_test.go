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

func TestOrphansAreAdoptedAndForeignPodsAreNot(t *testing.T) {
	s := withoutController(t)
	orphan, foreign := s.pod("orphan"), s.pod("foreign")
	foreign.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "1234", Controller: new(true)}}
	for _, pod := range []*corev1.Pod{orphan, foreign} {
		pod.Labels = map[string]string{"app": "web"}
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "example.test/web:v1"}}
		s.Make(pod)
	}
	s.startController()
	s.create("plain", `spec: {updateStrategy: {type: OnDelete}}`)
	s.until("three Pods of the set", func() bool { return s.set().Status.Replicas == 3 })
	s.Read(orphan)
	if !metav1.IsControlledBy(orphan, s.set()) {
		t.Errorf("the orphan belongs to %v", orphan.OwnerReferences)
	}
	// The garbage collector may have deleted it, since its owner does not exist.
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign); err == nil && metav1.GetControllerOf(foreign).Name != "other" {
		t.Errorf("the foreign Pod was touched: %v", foreign.OwnerReferences)
	}
}

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
