// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// byFinalizer holds its Pods at all three gates by finalizers, and out of service
// at two of them.
const byFinalizer = `
apiVersion: apps.kruise.io/v1alpha1
kind: CloneSet
metadata: {name: web}
spec:
  replicas: 1
  lifecycle:
    preNormal: {finalizersHandler: [example.com/registered]}
    inPlaceUpdate: {finalizersHandler: [example.com/update-a, example.com/update-b], markPodNotReady: true}
    preDelete: {finalizersHandler: [example.com/delete], markPodNotReady: true}
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
      finalizers: [example.com/update-a, example.com/update-b, example.com/delete]
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "example.test/web:v1"}]}
  updateStrategy: {type: InPlaceIfPossible, maxUnavailable: 1}
`

const (
	updateA, updateB, deleteFinalizer = "example.com/update-a", "example.com/update-b", "example.com/delete"
)

// withFinalizers makes the only Pod have these finalizers, in this order; it may
// go on its way out by that.
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
		return len(found) == 1 && conditionOf(&found[0], corev1.PodReady) == ready
	})
	return pod
}

// One life through all gates, by finalizers: one holds, all are needed to go on,
// and the mark that takes the Pod out of service is lifted on each way back.
func TestHooksByFinalizer(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.create(byFinalizer)
	s.serves(apps.StatePreparingNormal, corev1.ConditionTrue)
	s.withFinalizers(updateA, updateB, deleteFinalizer, registeredKey)
	first := s.serves(apps.StateNormal, corev1.ConditionTrue)

	s.image("example.test/web:v2")
	s.serves(apps.StatePreparingUpdate, corev1.ConditionFalse)
	s.image("example.test/web:v1") // rolled back at the gate
	s.serves(apps.StateNormal, corev1.ConditionTrue)
	s.image("example.test/web:v2")
	s.serves(apps.StatePreparingUpdate, corev1.ConditionFalse)
	s.withFinalizers(updateB, deleteFinalizer, registeredKey) // the other one holds on
	if pod := s.serves(apps.StatePreparingUpdate, corev1.ConditionFalse); pod.Spec.Containers[0].Image != "example.test/web:v1" {
		t.Errorf("a Pod that is held runs %s", pod.Spec.Containers[0].Image)
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
	s.withFinalizers(updateA, updateB, registeredKey) // the hook lets go, and with it the Pod
	s.gone(first.Name)
	s.settled(0)
	pod := first.DeepCopy()
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || len(pod.Finalizers) != 3 {
		t.Errorf("finalizers of others are %v: %v", pod.Finalizers, err)
	}
	s.finalizers(pod)
}

// The grace period is between leaving the endpoints and the change: at no time
// does a Pod that is in service have an image that its container does not run.
func TestDrainComesFirst(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.create(plain, "spec.replicas", 1, "spec.updateStrategy.inPlaceUpdateStrategy.gracePeriodSeconds", 2)
	s.settled(1)
	watch, err := s.client.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(s.namespace))
	if err != nil {
		t.Fatal(err)
	}
	s.image("example.test/web:v2")
	var left, changed corev1.Pod
	for event := range watch.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			t.Fatalf("watch: %v", event.Object)
		}
		out := conditionOf(pod, apps.ConditionInPlaceUpdateReady) == corev1.ConditionFalse
		isNew := pod.Spec.Containers[0].Image == "example.test/web:v2"
		if out && left.Name == "" {
			left = *pod
		}
		if isNew && changed.Name == "" {
			changed = *pod
		}
		if isNew && !out && pod.Status.ContainerStatuses[0].Image != "example.test/web:v2" {
			t.Errorf("in service before the kubelet runs the new image: %v", pod.Status.Conditions)
		}
		if isNew && !out {
			watch.Stop()
			break
		}
	}
	if left.Name == "" || left.Spec.Containers[0].Image != "example.test/web:v1" {
		t.Fatalf("left the endpoints with %v", left.Spec.Containers)
	}
	if conditionOf(&changed, apps.ConditionInPlaceUpdateReady) != corev1.ConditionFalse {
		t.Errorf("changed while in service: %v", changed.Status.Conditions)
	}
	i := slices.IndexFunc(left.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == apps.ConditionInPlaceUpdateReady })
	drained := left.Status.Conditions[i].LastTransitionTime
	record := changed.Annotations[apps.AnnotationLifecycleTimestamp]
	if since := s.since(record).Sub(drained.Time).Seconds(); since < 2 {
		t.Errorf("changed %v s after the Pod left its endpoints, want 2 or more", since)
	}
	s.settled(1)
}

func (s *story) since(timestamp string) time.Time {
	s.Helper()
	at, err := time.Parse(time.RFC3339, timestamp)
	if err != nil {
		s.Fatal(err)
	}
	return at
}
