// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// The oldest unused revisions are deleted; those that Pods use stay, whatever the
// limit.
func TestRevisionHistoryLimit(t *testing.T) {
	s := running(t, "plain", `spec: {replicas: 2, revisionHistoryLimit: 1, updateStrategy: {partition: 1}}`)
	first := s.set().Status.UpdateRevision
	for _, image := range []string{"web:v2", "web:v3", "web:v4"} {
		s.image(image)
		s.untilStatus("one Pod at "+image, func(status *apps.CloneSetStatus) bool {
			return status.UpdatedAvailableReplicas == 1 && status.AvailableReplicas == 2
		})
	}
	last := s.set().Status.UpdateRevision
	s.until("one revision that nothing uses beside the first and the last", func() bool {
		names := s.revisionNames()
		return len(names) == 3 && names[0] == first && names[2] == last
	})
	s.patch(`spec: {revisionHistoryLimit: 0}`)
	s.until("those in use alone", func() bool { return slices.Equal(s.revisionNames(), []string{first, last}) })
	s.patch(`spec: {updateStrategy: {partition: 0}}`)
	s.until("the last alone", func() bool { return slices.Equal(s.revisionNames(), []string{last}) })
	s.settled(2)
}

// counts are the counters of a status, in the order of the fields.
type counts struct{ replicas, ready, available, updated, updatedReady, updatedAvailable, expected int32 }

func (s *story) counted(phase string, want counts) {
	s.Helper()
	s.untilStatus(phase, func(c *apps.CloneSetStatus) bool {
		return want == counts{
			c.Replicas, c.ReadyReplicas, c.AvailableReplicas, c.UpdatedReplicas, c.UpdatedReadyReplicas, c.UpdatedAvailableReplicas, c.ExpectedUpdatedReplicas,
		}
	})
}

// The status in each phase of a rollout with a hook and a partition.
func TestStatusCounters(t *testing.T) {
	s := begin(t)
	s.create("hooked", `spec: {replicas: 3, updateStrategy: {partition: 2}}`)
	s.counted("all created", counts{3, 3, 3, 3, 3, 3, 1})
	first := s.set().Status.CurrentRevision
	s.image("web:v2")
	pod := s.one(apps.StatePreparingUpdate)
	s.counted("at its gate", counts{3, 3, 2, 0, 0, 0, 1})
	s.label(pod.Name, inPlaceKey, "false")
	s.one(apps.StateUpdated)
	s.counted("updated, and not in service yet", counts{3, 3, 2, 1, 1, 0, 1})
	s.label(pod.Name, inPlaceKey, "true")
	s.counted("back in service", counts{3, 3, 3, 1, 1, 1, 1})
	if status := s.set().Status; status.CurrentRevision != first || status.UpdateRevision == first {
		t.Errorf("current %s, update %s in mid-rollout", status.CurrentRevision, status.UpdateRevision)
	}
	s.patch(`spec: {replicas: 2}`)
	leaving := s.one(apps.StatePreparingDelete)
	s.counted("the updated one at the gate before its deletion, since the partition keeps two old ones", counts{3, 3, 2, 1, 1, 0, 0})
	s.label(leaving.Name, deleteKey, "false")
	s.counted("gone", counts{2, 2, 2, 0, 0, 0, 0})
}
