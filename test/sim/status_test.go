// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/usher-dev/usher/test/model"
)

// TestStatusOncePerStep: without faults, each status reports something that has
// happened since the previous one, and a rollout needs no more statuses than it has
// steps.
func TestStatusOncePerStep(t *testing.T) {
	for _, test := range []struct {
		name string
		set  string
		// most is how many statuses a Pod may cost.
		most int
	}{
		// Out of service; not ready; ready, with the next one out.
		{"without hooks", "replicas 10; inPlace", 3},
		// Held; out of service; not ready; back and held; ready; released.
		{"with hooks", "replicas 10; inPlace; hooks label", 6},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := New(steady(), NewSet(test.set))
			s.World.runUntil(epoch.Add(time.Minute))
			before := len(s.statuses(t))
			s.Edit("rolls out app:2", to("image app:2"))
			if v := s.Settle(); v != nil {
				t.Fatalf("%v\n%s", v, s.World.Story())
			}
			writes := len(s.statuses(t)) - before
			if writes > 10*test.most {
				t.Errorf("%d writes of the status for 10 Pods, %d are enough\n%s", writes, 10*test.most, s.World.Story())
			}
			t.Logf("%d writes of the status for 10 Pods", writes)
		})
	}
}

// TestStatusOfALargeSet: during the rollout of a large set, the counters may lag behind
// by a few Pods, which saves writes; in the end they are right.
func TestStatusOfALargeSet(t *testing.T) {
	// A status after each pass that changed it would cost 146 writes.
	const pods, most = 150, 120
	s := New(steady(), NewSet(fmt.Sprintf("replicas %d; inPlace; unavailable 20%%", pods)))
	s.World.runUntil(epoch.Add(10 * time.Minute))
	s.Edit("rolls out app:2", to("image app:2"))
	edited := s.Server.Version
	if v := s.Settle(); v != nil {
		t.Fatalf("%v\n%s", v, s.World.Story())
	}
	writes := 0
	for _, c := range s.Server.Log[model.CloneSets] {
		if c.Version > edited && isProcess(c.Actor) {
			writes++
		}
	}
	if writes > most {
		t.Errorf("%d writes of the status for %d Pods, %d are enough\n%s", writes, pods, most, s.World.Story())
	}
	status := s.Set().Status
	if status.UpdatedAvailableReplicas != pods || status.UpdatedReplicas != pods || status.ReadyReplicas != pods {
		t.Errorf("in the end the status is %+v", status)
	}
}

// statuses lists the status writes, and fails the test if nothing happened between two
// of them.
func (s *Simulation) statuses(t *testing.T) []*model.Commit {
	t.Helper()
	var out []*model.Commit
	for _, c := range s.Server.Log[model.CloneSets] {
		if !isProcess(c.Actor) {
			continue
		}
		if len(out) > 0 && !s.happened(out[len(out)-1].Version, c.Version) {
			t.Errorf("two statuses in a row, at %s and %s, and nothing happens in between\n%s",
				out[len(out)-1].At.Sub(epoch), c.At.Sub(epoch), s.World.Story())
		}
		out = append(out, c)
	}
	return out
}

// happened reports whether a Pod or the spec changed between two versions.
func (s *Simulation) happened(from, to int64) bool {
	for _, kind := range []model.Kind{model.Pods, model.CloneSets} {
		for _, c := range s.Server.Log[kind] {
			if c.Version > from && c.Version < to {
				return true
			}
		}
	}
	return false
}
