// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"fmt"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registries"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// following is what a pass of a namespace knows of Services of a Registry that somebody else writes to, after an earlier
// one has learned that.
func following(r *Reconciler, namespace string, learned learned) *observation {
	return &observation{learned: learned, snapshot: plan.Snapshot{
		Now: r.clock.Now(), Namespace: namespace, Registries: map[string]plan.RegistryState{"lb": {Follows: true}},
	}}
}

// asks has a pass ask for a target, which answers, and returns what the pass knows then, and whether it has asked.
func asks(r *Reconciler, o *observation, at plan.Target, answer func() plan.Listing) (after *observation, asked bool) {
	o, targets, listings, followed := r.askOrRecall(o, []plan.Target{at})
	for _, target := range targets {
		listings[target] = answer()
	}
	o, followed = o.follow(targets, listings, followed, o.snapshot.Now)
	return o.with(o.snapshot.WithListings(listings, followed)), len(targets) > 0
}

// answers are what a target lists, with a version.
func answers(version string) plan.Listing {
	return plan.Listing{Entries: []registry.Entry{{ID: "a", Version: version}}}
}

// TestFollowedIsAskedInItsTurn: a target is asked again after a while, which is longer the longer nothing changes
// there. In between the pass has what it listed last.
func TestFollowedIsAskedInItsTurn(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(epoch)
	r := &Reconciler{clock: clock, pool: registries.New(nil, nil, clock, 1)}
	at := plan.Target{Registry: "lb", Service: "web"}
	calls := 0
	var known learned
	pass := func(answer plan.Listing) plan.Snapshot {
		o, asked := asks(r, following(r, namespace, known), at, func() plan.Listing { return answer })
		if asked {
			calls++
		}
		known = o.learned
		return o.snapshot
	}
	pass(answers("initial"))
	p := pass(answers("unasked"))
	checktest.Same(t, "calls at once", 1, calls)
	checktest.Same(t, "what the pass has instead", "initial", p.Listings[at].Entries[0].Version)
	checktest.Same(t, "what it knows of that", plan.Followed{Again: epoch.Add(plan.FollowEvery), Stale: true}, p.Followed[at])
	for range 300 {
		clock.SetTime(clock.Now().Add(time.Second))
		pass(answers("initial"))
	}
	if calls < 300/10 || calls > 300/8 {
		t.Errorf("%d calls in 300 s in which nothing changes", calls)
	}
	calls = 0
	for n := range 300 {
		clock.SetTime(clock.Now().Add(time.Second))
		pass(answers(fmt.Sprint(n)))
	}
	if calls < 300/2-10 || calls > 300/2 {
		t.Errorf("%d calls in 300 s in which something changes all the time", calls)
	}
	clock.SetTime(clock.Now().Add(maxFollow))
	pass(plan.Listing{Err: registry.Transient(errors.New("down"))})
	if p := pass(answers("back")); p.Followed[at].Stale {
		t.Error("a registry that was down is not asked when its back-off is over")
	}
	clock.SetTime(clock.Now().Add(maxFollow))
	pass(plan.Listing{Err: registry.OneService(registry.Permanent(errors.New("none")))})
	p = pass(answers("unasked"))
	checktest.Same(t, "how long a service is left alone that cannot be listed", maxFollow, p.Followed[at].Again.Sub(clock.Now()))
}

// TestFollowedTargetThatComesBack: a target whose Registration is deleted and created again is asked no sooner than if
// it had stayed.
func TestFollowedTargetThatComesBack(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(epoch)
	r := &Reconciler{clock: clock, pool: registries.New(nil, nil, clock, 1)}
	at := plan.Target{Registry: "lb", Service: "web"}
	calls := 0
	answer := func() plan.Listing {
		calls++
		return answers("1")
	}
	o, _ := asks(r, following(r, namespace, learned{}), at, answer)
	away := following(r, namespace, o.learned).planSweeps(nil) // nobody names the target
	asks(r, following(r, namespace, away.learned), at, answer)
	checktest.Same(t, "how often the target is asked at once", 1, calls)
	clock.SetTime(clock.Now().Add(plan.FollowEvery))
	away = following(r, namespace, away.learned).planSweeps(nil)
	checktest.Same(t, "what is kept after that", 0, len(away.followed))
}

// TestFollowedCallsAreBounded: however many namespaces ask, a Registry is called a few times a second, and each in its
// turn.
func TestFollowedCallsAreBounded(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(epoch)
	r := &Reconciler{clock: clock, pool: registries.New(nil, nil, clock, 1)}
	const namespaces, seconds = 100, 60
	calls, known := map[string]int{}, map[string]learned{}
	for range seconds * 10 {
		for n := range namespaces {
			name := fmt.Sprint("n", n)
			o, _ := asks(r, following(r, name, known[name]), plan.Target{Registry: "lb", Service: name}, func() plan.Listing {
				calls[name]++
				return answers(fmt.Sprint(calls[name]))
			})
			known[name] = o.learned
		}
		clock.SetTime(clock.Now().Add(time.Second / 10))
	}
	total, least := 0, seconds
	for n := range namespaces {
		total, least = total+calls[fmt.Sprint("n", n)], min(least, calls[fmt.Sprint("n", n)])
	}
	if most := seconds*int(registries.ListingsPerSecond) + registries.ListingsBurst; total > most || total < most*9/10 {
		t.Errorf("%d calls in %d s, want %d at most", total, seconds, most)
	}
	if least < 2 {
		t.Errorf("one namespace had %d calls, in all %d", least, total)
	}
}
