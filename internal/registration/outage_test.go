// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

// at is a time so many seconds after the epoch.
func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

func away(from, to int) Outage { return Outage{From: at(from), To: at(to)} }

func TestHeard(t *testing.T) {
	for name, c := range map[string]struct {
		outage Outage
		gone   int
		want   int
		late   bool
	}{
		"no outage":                            {Outage{}, 100, 105, false},
		"one that callers have got over":       {away(60, 80), 100, 105, false},
		"one that some have yet to get over":   {away(60, 81), 100, 107, true},
		"gone as soon as it is back":           {away(80, 95), 100, 115, true},
		"a long one counts as the bound says":  {away(0, 95), 100, 130, true},
		"gone while it was away":               {away(80, 110), 100, 145, true},
		"away before callers could have heard": {away(102, 110), 100, 123, true},
		"it goes on":                           {Outage{From: at(90)}, 100, 145, true},
	} {
		t.Run(name, func(t *testing.T) {
			have, late := c.outage.heard(at(c.gone), 5*time.Second, 30*time.Second, at(120))
			if c.outage.To.IsZero() && c.late {
				c.want += 10 // of the 120 seconds, 30 count
			}
			if !have.Equal(at(c.want)) || late != c.late {
				t.Errorf("heard %s after the epoch, late %t; want %ds, %t", have.Sub(epoch), late, c.want, c.late)
			}
		})
	}
	have, _ := away(80, 95).heard(at(100), 5*time.Second, 0, at(120))
	if !have.Equal(at(105)) {
		t.Errorf("without a bound for callers: %s, want 105s", have.Sub(epoch))
	}
}

func TestNextOutage(t *testing.T) {
	for name, c := range map[string]struct {
		before Outage
		from   int
		want   int
	}{
		"the first":                {Outage{}, 100, 100},
		"callers were back":        {away(60, 80), 100, 100},
		"some were not: it is one": {away(60, 81), 100, 60},
		"nobody takes longer than the longest bound": {away(-10000, 81), 681, 681},
	} {
		if have := c.before.next(at(c.from)); have != (Outage{From: at(c.want)}) {
			t.Errorf("%s: %+v, want it from %ds", name, have, c.want)
		}
	}
}

// TestOutagesAreNoticed tells a pool what registries answer.
func TestOutagesAreNoticed(t *testing.T) {
	refused, broken := registry.Permanent(errors.New("refused")), registry.Transient(errors.New("down"))
	type call struct {
		at  int
		err error
	}
	for name, c := range map[string]struct {
		known usherv1alpha1.RegistryStatus
		calls []call
		want  Outage
	}{
		"all is well":                           {calls: []call{{1, nil}, {2, nil}}},
		"it refuses us alone":                   {calls: []call{{1, nil}, {2, refused}, {9, nil}}},
		"from the last answer to the next":      {calls: []call{{1, nil}, {5, broken}, {6, broken}, {9, nil}, {12, nil}}, want: away(1, 9)},
		"it goes on":                            {calls: []call{{1, nil}, {5, broken}}, want: Outage{From: at(1)}},
		"refusing is no answer":                 {calls: []call{{1, nil}, {5, broken}, {6, refused}}, want: Outage{From: at(1)}},
		"it never answered before":              {calls: []call{{5, broken}, {9, nil}}, want: away(5, 9)},
		"another process saw it go":             {status(Outage{From: at(1)}, 0), []call{{9, nil}}, away(1, 9)},
		"another process saw it all":            {status(away(1, 9), 9), []call{{20, nil}}, away(1, 9)},
		"another process saw it work, long ago": {status(Outage{}, 3), []call{{20, broken}, {21, nil}}, away(3, 21)},
		"it is gone again soon":                 {status(away(1, 9), 9), []call{{10, nil}, {11, broken}, {12, nil}}, away(1, 12)},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(epoch)
			p := newPool(nil, nil, clock)
			p.sights["a"] = sightOf(c.known)
			for _, call := range c.calls {
				clock.SetTime(at(call.at))
				p.asked(t.Context(), "a", call.err)
			}
			if have := p.outage("a"); have != c.want {
				t.Errorf("noticed %+v, want %+v", have, c.want)
			}
		})
	}
}

// status is what a process leaves behind that saw the outage, and the registry
// work since so many seconds after the epoch, if that is not 0.
func status(o Outage, since int) usherv1alpha1.RegistryStatus {
	s := usherv1alpha1.RegistryStatus{LastOutage: o.status()}
	if since != 0 {
		s.Conditions = []metav1.Condition{{Type: usherv1alpha1.ConditionReachable, Status: metav1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(at(since))}}
	}
	return s
}

func TestACancelledCallIsNoOutage(t *testing.T) {
	p := newPool(nil, nil, clocktesting.NewFakePassiveClock(epoch))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.asked(ctx, "a", registry.Transient(context.Canceled))
	if have := p.outage("a"); have != (Outage{}) {
		t.Errorf("the end of a pass made %+v", have)
	}
}

func TestDrainingAfterAnOutage(t *testing.T) {
	f := newFixture()
	f.Registries["discovery"] = RegistryState{Prefix: "services", Outage: away(-15, -1)}
	f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).
		drained(GateInPlaceUpdate, 20*time.Second, map[string]time.Duration{"discovery": 6 * time.Second})
	plan := MakePlan(f.Snapshot)
	want := "callers of Registry discovery may hear of it as late as 2026-03-01T12:00:18Z, since they have to find the " +
		"registry again: it was away from 2026-03-01T11:59:45Z to 2026-03-01T11:59:59Z"
	if len(plan.Waiting) != 1 || plan.Waiting[0].Reason != ReasonReconnecting || plan.Waiting[0].Message != want {
		t.Fatalf("it waits for %+v, want %q", plan.Waiting, want)
	}
	line := "Waits at inPlaceUpdate (" + keyInPlace + ") for Registry discovery since 2026-03-01T11:59:40Z: " + want
	if c := plan.Patches[0].Condition; c == nil || c.Message != line {
		t.Errorf("the Pod says %+v, want %q", c, line)
	}
	if !plan.RequeueAt.Equal(at(18)) {
		t.Errorf("it looks again %s after the epoch, want 18s", plan.RequeueAt.Sub(epoch))
	}
	f.Now = at(18)
	if plan = MakePlan(f.Snapshot); len(plan.Waiting) != 0 {
		t.Errorf("then it waits for %+v", plan.Waiting)
	}
}

// TestOutagesOutliveUsher restarts Usher after an outage that it has seen.
func TestOutagesOutliveUsher(t *testing.T) {
	s := newSimulation(t)
	s.populate(1)
	s.passes(2)
	s.breaks("discovery", memory.Down)
	s.clock.SetTime(at(20))
	s.refresh()
	s.probe()
	s.breaks("discovery", memory.None)
	s.clock.SetTime(at(25).Add(time.Millisecond))
	s.refresh()
	s.probe()
	for _, fresh := range []bool{false, true} {
		if fresh {
			s.restart()
			s.passes(1)
		}
		want := Outage{From: at(0), To: at(25).Add(time.Millisecond)}
		if fresh {
			want.To = at(26) // the status knows seconds
		}
		if have := s.operator.pool.outage("discovery"); !have.From.Equal(want.From) || !have.To.Equal(want.To) {
			t.Errorf("after a restart (%t) it knows of %+v, want %+v", fresh, have, want)
		}
	}
	if have := s.operator.pool.outage("backup"); have != (Outage{}) {
		t.Errorf("backup was never away, and it knows of %+v", have)
	}
}
