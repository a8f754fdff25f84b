// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"testing"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

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
	s.event("PodsToDeleteUnknown")
}

// A paused set keeps its replicas and states, and updates no Pod; once it is resumed, the
// update continues.
func TestPausedSet(t *testing.T) {
	s := running(t, "tooled", `spec: {progressDeadlineSeconds: 600}`)
	before := s.identities()
	s.patch(`spec: {updateStrategy: {paused: true, maxSurge: 1}}`)
	s.setImage("web:v2")
	s.untilStatus("the pause to be reported", func(*apps.CloneSetStatus) bool {
		return s.condition(apps.ConditionProgressing).Reason == "CloneSetPaused"
	})
	s.unchanged()
	if got := s.restarts(); got != "0+0 0+0 0+0" || s.set().Status.UpdatedReplicas != 0 {
		t.Errorf("restarts %s, updated %d", got, s.set().Status.UpdatedReplicas)
	}
	s.patch(`spec: {replicas: 4}`)
	s.until("a fourth Pod in service", func() bool { return s.set().Status.AvailableReplicas == 4 })
	s.observed()
	for _, pod := range s.pods() {
		if image := pod.Spec.Containers[0].Image; before[pod.Name] != "" && image != "example.test/web:v1" {
			t.Errorf("Pod %s was updated to %s", pod.Name, image)
		}
	}
	s.patch(`spec: {updateStrategy: {paused: false, maxSurge: 0}}`)
	if says := s.rolloutStatus(); says != "successfully rolled out" {
		t.Error(says)
	}
	s.settled(4)
	now := s.identities()
	for name, uid := range before {
		if now[name] != uid {
			t.Errorf("Pod %s was recreated", name)
		}
	}
	if got := s.restarts(); got != "0+0 1+0 1+0 1+0" {
		t.Errorf("restarts %s", got)
	}
}
