// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/servers"
)

// scene is a witness with a clock.
type scene struct {
	*testing.T
	*witness
	clock *clocktesting.FakePassiveClock
}

func newScene(t *testing.T) *scene {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	return &scene{t, newWitness(clock.Now), clock}
}

func (s *scene) after(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }

func (s *scene) pod(changes ...func(*corev1.Pod)) { s.saw(pod("a", changes...), "") }

func (s *scene) joins() { s.sighted(servers.Sighting{UID: "a", In: true, Since: s.clock.Now()}) }

// leaves is an entry that left at some time after the last check.
func (s *scene) leaves(look time.Duration) {
	s.sighted(servers.Sighting{UID: "a", Since: s.clock.Now().Add(-look)})
}

// wrongs are the Pods whose entries left wrongly, once everything is judged.
func (s *scene) wrongs() []string {
	s.Helper()
	s.after(patience)
	s.judge()
	said, err := s.end(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return said.wrong
}

func TestWitness(t *testing.T) {
	const moment = 10 * time.Millisecond
	for name, c := range map[string]struct {
		happens func(s *scene)
		wrong   bool
	}{
		"an entry of a Pod that serves": {wrong: true, happens: func(s *scene) { s.leaves(0) }},
		"one that came back at once":    {wrong: true, happens: func(s *scene) { s.leaves(0); s.joins() }},
		"found by a look at intervals":  {wrong: true, happens: func(s *scene) { s.leaves(2 * time.Second) }},
		"of a Pod that was updated":     {wrong: true, happens: func(s *scene) { s.pod(in(apps.StateUpdated)); s.leaves(0) }},
		"of a Pod that is at PreNormal": {wrong: true, happens: func(s *scene) { s.pod(in(apps.StatePreparingNormal)); s.leaves(0) }},
		"that drains long afterwards": {wrong: true, happens: func(s *scene) {
			s.leaves(0)
			s.after(patience)
			s.judge()
			s.pod(in(apps.StatePreparingDelete))
		}},
		"that drained before it came": {wrong: true, happens: func(s *scene) {
			s.pod(in(apps.StatePreparingUpdate))
			s.leaves(0)
			s.pod(in(apps.StateUpdated))
			s.after(moment)
			s.joins()
			s.after(moment)
			s.leaves(0)
		}},
		"for an update":   {happens: func(s *scene) { s.pod(in(apps.StatePreparingUpdate)); s.leaves(0) }},
		"for a deletion":  {happens: func(s *scene) { s.pod(in(apps.StatePreparingDelete)); s.leaves(0) }},
		"past the hooks":  {happens: func(s *scene) { s.pod(ending); s.leaves(0) }},
		"not ready":       {happens: func(s *scene) { s.pod(unready); s.leaves(0) }},
		"the Pod's watch": {happens: func(s *scene) { s.leaves(0); s.after(moment); s.pod(in(apps.StatePreparingUpdate)) }},
		"a look that is late": {happens: func(s *scene) {
			s.pod(in(apps.StatePreparingUpdate))
			s.after(moment)
			s.pod(in(apps.StateUpdated))
			s.after(time.Second)
			s.leaves(2 * time.Second)
		}},
		"of a Pod that nobody knows": {happens: func(s *scene) { s.sighted(servers.Sighting{UID: "b"}) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.pod()
			s.joins()
			s.after(time.Hour)
			c.happens(s)
			if got := s.wrongs(); len(got) > 0 != c.wrong || c.wrong && !slices.Equal(got, []string{"a"}) {
				t.Errorf("left wrongly: %v, want that: %t", got, c.wrong)
			}
		})
	}
}

func TestWitnessCounts(t *testing.T) {
	s := newScene(t)
	s.pod()
	if s.anyone() != "" {
		t.Error("somebody is listed from the beginning")
	}
	s.joins()
	if err := s.await(t.Context(), 1); err != nil || s.anyone() != "a" {
		t.Errorf("after an entry came: %v, %q", err, s.anyone())
	}
	ended, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	if err := s.awaitMoves(ended, 1, 1); !errors.Is(err, enough) {
		t.Errorf("waited for an entry that does not leave: %v", err)
	}
	s.leaves(0)
	if err := s.awaitMoves(t.Context(), 1, 1); err != nil {
		t.Error(err)
	}
	if _, err := s.end(ended); !errors.Is(err, enough) {
		t.Errorf("the phase ended before all was judged: %v", err)
	}
	s.begin()
	if got := s.wrongs(); len(got) != 1 || s.joined != 0 || s.left != 0 {
		t.Errorf("the next phase begins with %d, %d and has %v", s.joined, s.left, got)
	}
}
