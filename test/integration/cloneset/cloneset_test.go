// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// Each gate holds until somebody confirms, and a controller that crashes at a gate
// continues where it was.
func TestHooksHoldEachGate(t *testing.T) {
	s := withoutController(t)
	stop := s.startController()
	restart := func() {
		stop()
		stop = s.startController()
	}
	s.create("hooked")
	s.settled(2)
	before := s.identities()
	s.image("web:v2")
	for range 2 {
		pod := s.one(apps.StatePreparingUpdate)
		s.isTrue(apps.ConditionBlocked, pod.Name, inPlaceKey)
		if image := pod.Spec.Containers[0].Image; image != "example.test/web:v1" {
			t.Errorf("the Pod at the gate has %s already", image)
		}
		restart()
		s.label(pod.Name, inPlaceKey, "false")
		if updated := s.one(apps.StateUpdated); updated.Name != pod.Name || updated.Spec.Containers[0].Image != "example.test/web:v2" {
			t.Errorf("updated %s to %s", updated.Name, updated.Spec.Containers[0].Image)
		}
		restart()
		s.label(pod.Name, inPlaceKey, "true")
	}
	s.settled(2)
	s.isFalse(apps.ConditionBlocked)
	s.samePods(before)

	s.patch(`spec: {replicas: 1}`)
	pod := s.one(apps.StatePreparingDelete)
	restart()
	s.label(pod.Name, deleteKey, "false")
	s.settled(1)
}

func TestABadTemplateCostsNoPod(t *testing.T) {
	s := running(t, "plain")
	before := s.identities()
	s.patch(`spec: {template: {spec: {containers: [{name: main, image: "example.test/web:v2", imagee: typo}]}}}`)
	s.isTrue(apps.ConditionFailedUpdate, "imagee")
	s.samePods(before)
	if s.set().Status.AvailableReplicas != 3 {
		t.Errorf("the rollout began: %s", s.Picture())
	}
	s.image("web:v2")
	s.settled(3)
}

// A set's name may be longer than a label's value: its Pods are created, known and updated.
func TestLongName(t *testing.T) {
	s := begin(t)
	s.name = strings.Repeat("web-", 20) + "web"
	s.create("plain", "metadata: {name: "+s.name+"}")
	s.settled(3)
	before := s.identities()
	s.image("web:v2")
	s.settled(3)
	s.samePods(before)
}

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

// A Pod can be named for deletion in two ways, and be replaced or removed; the hook
// stops both.
func TestNamedPodsAreReplacedOrGoFirst(t *testing.T) {
	s := running(t, "hooked", `spec: {replicas: 3, updateStrategy: {maxUnavailable: 1}}`)
	pods := s.pods()
	s.label(pods[0].Name, apps.LabelSpecifiedDelete, "false")
	s.label(pods[1].Name, apps.LabelSpecifiedDelete, "true")
	s.patch(`spec: {scaleStrategy: {podsToDelete: [%s]}}`, pods[2].Name)
	first := s.one(apps.StatePreparingDelete) // maxUnavailable is 1: the other one waits
	s.label(first.Name, deleteKey, "false")
	s.gone(first.Name)
	second := s.one(apps.StatePreparingDelete)
	s.label(second.Name, deleteKey, "false")
	s.settled(3)
	left := s.identities()
	if left[pods[0].Name] != pods[0].UID || left[pods[1].Name] != "" || left[pods[2].Name] != "" {
		t.Errorf("of %v, %v are left", []string{pods[0].Name, pods[1].Name, pods[2].Name}, left)
	}
	s.until("the name to leave the list", func() bool { return len(s.set().Spec.ScaleStrategy.PodsToDelete) == 0 })

	victim := s.pods()[1].Name
	s.patch(`spec: {replicas: 2, scaleStrategy: {podsToDelete: [%s]}}`, victim)
	if waiting := s.one(apps.StatePreparingDelete); waiting.Name != victim {
		t.Errorf("%s goes, not %s", waiting.Name, victim)
	}
	s.label(victim, deleteKey, "false")
	s.settled(2)
	s.until("the name to leave the list", func() bool { return len(s.set().Spec.ScaleStrategy.PodsToDelete) == 0 })
	s.patch(`spec: {scaleStrategy: {podsToDelete: [another]}}`)
	s.isTrue(apps.ConditionFailedScale, "another, which is not a Pod of this CloneSet")
	s.Event(s.set(), "PodsToDeleteUnknown")
}

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
