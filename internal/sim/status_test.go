// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestStatusOncePerStep: in a cluster in which nothing goes wrong, each status
// tells of something that has happened since the one before it, and a rollout
// costs no more of them than it has steps.
func TestStatusOncePerStep(t *testing.T) {
	for _, test := range []struct {
		name string
		set  *apps.CloneSet
		// most is how many a Pod may cost.
		most int
	}{
		// Out of service, not ready, ready with the next one out.
		{"without hooks", inPlace(10).Build(), 3},
		// Held, out of service, not ready, back and held, ready, let go.
		{"with hooks", inPlace(10).Hooks(LabelHooks()).Build(), 6},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := New(steady(), test.set)
			s.World.runUntil(epoch.Add(time.Minute))
			before := len(s.statuses(t))
			s.Edit("rolls out app:2", Image("app:2"))
			if v := s.Rest(); v != nil {
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

// statuses lists the writes of the status, and fails the test if one of them
// follows on another one with nothing in between.
func (s *Simulation) statuses(t *testing.T) []*Commit {
	t.Helper()
	var out []*Commit
	for _, c := range s.Server.log[Sets] {
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

// happened says whether a Pod or the spec changed between two versions.
func (s *Simulation) happened(from, to int64) bool {
	for _, kind := range []Kind{Pods, Sets} {
		for _, c := range s.Server.log[kind] {
			if c.Version > from && c.Version < to {
				return true
			}
		}
	}
	return false
}
