// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
