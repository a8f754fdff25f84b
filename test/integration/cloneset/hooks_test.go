// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

const (
	updateA, updateB, deleteFinalizer = "example.com/update-a", "example.com/update-b", "example.com/delete"
)

// withFinalizers sets the finalizers of the only Pod, in this order; that may remove a
// Pod that is being deleted.
func (s *story) withFinalizers(list ...string) {
	s.Helper()
	s.until("the finalizers to be written", func() bool {
		pods := s.pods()
		if len(pods) == 0 || slices.Equal(pods[0].Finalizers, list) {
			return true
		}
		s.finalizers(&pods[0], list...)
		return false
	})
}

// serves waits until the only Pod is in a state, and ready or not.
func (s *story) serves(want apps.LifecycleState, ready corev1.ConditionStatus) corev1.Pod {
	s.Helper()
	var pod corev1.Pod
	s.until("one Pod in "+string(want)+", Ready="+string(ready), func() bool {
		found := s.in(want)
		if len(found) == 1 {
			pod = found[0]
		}
		return len(found) == 1 && conditionOf(&found[0], corev1.PodReady).Status == ready
	})
	return pod
}

// One life through all gates with finalizers: one finalizer holds, all are needed to
// continue, and the mark that takes the Pod out of service is removed on each way back.
func TestHooksByFinalizer(t *testing.T) {
	s := begin(t)
	s.create("by-finalizer")
	s.serves(apps.StatePreparingNormal, corev1.ConditionTrue)
	s.withFinalizers(updateA, updateB, deleteFinalizer, registeredKey)
	first := s.serves(apps.StateNormal, corev1.ConditionTrue)

	s.image("web:v2")
	s.serves(apps.StatePreparingUpdate, corev1.ConditionFalse)
	s.image("web:v1") // rolled back at the gate
	s.serves(apps.StateNormal, corev1.ConditionTrue)
	s.image("web:v2")
	s.serves(apps.StatePreparingUpdate, corev1.ConditionFalse)
	s.withFinalizers(updateB, deleteFinalizer, registeredKey) // the other one is still there
	if pod := s.serves(apps.StatePreparingUpdate, corev1.ConditionFalse); pod.Spec.Containers[0].Image != "example.test/web:v1" {
		t.Errorf("a Pod at its gate runs %s", pod.Spec.Containers[0].Image)
	}
	s.withFinalizers(deleteFinalizer, registeredKey)
	s.serves(apps.StateUpdated, corev1.ConditionTrue)
	s.withFinalizers(updateA, deleteFinalizer, registeredKey) // one of two is not enough
	s.serves(apps.StateUpdated, corev1.ConditionTrue)
	s.withFinalizers(updateA, updateB, deleteFinalizer, registeredKey)
	if pod := s.serves(apps.StateNormal, corev1.ConditionTrue); pod.UID != first.UID || pod.Status.ContainerStatuses[0].RestartCount != 1 {
		t.Errorf("Pod %s with %d restarts, want one of Pod %s", pod.UID, pod.Status.ContainerStatuses[0].RestartCount, first.UID)
	}

	s.patch(`spec: {replicas: 0}`)
	s.serves(apps.StatePreparingDelete, corev1.ConditionFalse)
	s.patch(`spec: {replicas: 1}`)
	back := s.serves(apps.StatePreparingNormal, corev1.ConditionTrue)
	if slices.Contains(back.Finalizers, registeredKey) || !slices.Contains(back.Finalizers, deleteFinalizer) {
		t.Errorf("back with the finalizers %v", back.Finalizers)
	}
	s.withFinalizers(updateA, updateB, deleteFinalizer, registeredKey)
	s.settled(1)
	s.patch(`spec: {replicas: 0}`)
	s.serves(apps.StatePreparingDelete, corev1.ConditionFalse)
	s.withFinalizers(updateA, updateB, registeredKey) // the hook releases, and the Pod with it
	s.gone(first.Name)
	s.settled(0)
	s.Read(&first)
	if len(first.Finalizers) != 3 {
		t.Errorf("finalizers of others are %v", first.Finalizers)
	}
	s.finalizers(&first)
}

// The grace period lies between leaving the endpoints and the change: a Pod in service
// never has an image that its container does not run.
func TestDrainComesFirst(t *testing.T) {
	s := running(t, "plain", `spec: {replicas: 1, updateStrategy: {inPlaceUpdateStrategy: {gracePeriodSeconds: 2}}}`)
	next := s.watchPods()
	s.image("web:v2")
	out := func(pod *corev1.Pod) bool {
		return conditionOf(pod, apps.ConditionInPlaceUpdateReady).Status == corev1.ConditionFalse
	}
	changed := func(pod *corev1.Pod) bool { return pod.Spec.Containers[0].Image == "example.test/web:v2" }
	left := next(func(pod *corev1.Pod) bool { return out(pod) || changed(pod) })
	if changed(left) {
		t.Fatal("changed before it left its endpoints")
	}
	drained := conditionOf(left, apps.ConditionInPlaceUpdateReady).LastTransitionTime.Time
	second := next(func(pod *corev1.Pod) bool { return changed(pod) || !out(pod) })
	if !out(second) {
		t.Fatal("in service again before it is changed")
	}
	at, err := time.Parse(time.RFC3339, second.Annotations[apps.AnnotationLifecycleTimestamp])
	if err != nil || at.Sub(drained) < 2*time.Second {
		t.Errorf("left at %v, changed at %v: %v", drained, at, err)
	}
	back := next(func(pod *corev1.Pod) bool { return !out(pod) })
	if running := back.Status.ContainerStatuses[0]; running.Image != "example.test/web:v2" || running.RestartCount != 1 {
		t.Errorf("in service again with %s, %d restarts", running.Image, running.RestartCount)
	}
	s.settled(1)
}
