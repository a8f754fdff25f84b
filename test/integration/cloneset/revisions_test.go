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
	t.Parallel()
	s := begin(t)
	s.create(plain, "spec.replicas", 2, "spec.revisionHistoryLimit", 1, "spec.updateStrategy.partition", 1)
	s.settled(2)
	first := s.set().Status.UpdateRevision
	updated := func() bool {
		set := s.set()
		return set.Status.ObservedGeneration == set.Generation && set.Status.UpdatedAvailableReplicas == 1 && set.Status.AvailableReplicas == 2
	}
	for _, image := range []string{"example.test/web:v2", "example.test/web:v3", "example.test/web:v4"} {
		s.image(image)
		s.until("one Pod at "+image, updated)
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

// Applying an old template again returns to its old revision, which becomes the newest.
func TestRollbackIsTheOldRevision(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.create(plain)
	s.settled(3)
	first, before := s.set().Status.UpdateRevision, s.identities()
	s.image("example.test/web:v2")
	s.settled(3)
	second := s.set().Status.UpdateRevision
	s.image("example.test/web:v1")
	s.settled(3)
	if now := s.set().Status.UpdateRevision; now != first || second == first {
		t.Errorf("revisions %s, %s, and then %s", first, second, now)
	}
	revisions := s.revisions()
	if !slices.Equal(s.revisionNames(), []string{second, first}) || revisions[1].Revision != 3 {
		t.Errorf("revisions %v, the last is number %d", s.revisionNames(), revisions[len(revisions)-1].Revision)
	}
	for _, pod := range s.pods() {
		if pod.UID != before[pod.Name] || pod.Labels[apps.LabelRevision] != first {
			t.Errorf("Pod %s %s has revision %s", pod.Name, pod.UID, pod.Labels[apps.LabelRevision])
		}
	}
}

// counts are the counters of a status, in the order of the fields.
type counts struct{ replicas, ready, available, updated, updatedReady, updatedAvailable, expected int32 }

func (s *story) counted(phase string, want counts) {
	s.Helper()
	var got counts
	s.until(phase, func() bool {
		set := s.set()
		c := &set.Status
		got = counts{
			c.Replicas, c.ReadyReplicas, c.AvailableReplicas, c.UpdatedReplicas, c.UpdatedReadyReplicas, c.UpdatedAvailableReplicas, c.ExpectedUpdatedReplicas,
		}
		return c.ObservedGeneration == set.Generation && got == want
	})
}

// The status in each phase of a rollout with a hook and a partition.
func TestStatusCounters(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.create(hooked, "spec.replicas", 3, "spec.updateStrategy.partition", 2)
	s.counted("all made", counts{3, 3, 3, 3, 3, 3, 1})
	first := s.set().Status.CurrentRevision
	s.image("example.test/web:v2")
	pod := s.one(apps.StatePreparingUpdate)
	s.counted("held at its gate", counts{3, 3, 2, 0, 0, 0, 1})
	s.label(pod.Name, inPlaceKey, "false")
	s.one(apps.StateUpdated)
	s.counted("updated, and not in service yet", counts{3, 3, 2, 1, 1, 0, 1})
	s.label(pod.Name, inPlaceKey, "true")
	s.counted("back in service", counts{3, 3, 3, 1, 1, 1, 1})
	if status := s.set().Status; status.CurrentRevision != first || status.UpdateRevision == first {
		t.Errorf("current %s, update %s in mid-rollout", status.CurrentRevision, status.UpdateRevision)
	}
	s.patch(`spec: {replicas: 2}`)
	held := s.one(apps.StatePreparingDelete)
	s.counted("the updated one at the gate before its deletion, since the partition keeps two old ones", counts{3, 3, 2, 1, 1, 0, 0})
	s.label(held.Name, deleteKey, "false")
	s.counted("gone", counts{2, 2, 2, 0, 0, 0, 0})
}
