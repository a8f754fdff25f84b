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
	"github.com/usher-dev/usher/internal/registration/registry"
)

// following is a pass of a namespace over Services of a Registry that somebody else writes to.
func following(r *Reconciler, namespace string) *pass {
	return &pass{Reconciler: r, notes: r.notesOf(namespace), snapshot: plan.Snapshot{
		Now: r.clock.Now(), Namespace: namespace, Registries: map[string]plan.RegistryState{"lb": {Follows: true}},
		Listings: map[plan.Target]plan.Listing{}, Followed: map[plan.Target]plan.Followed{},
	}}
}

// answers are what a target lists, with a version.
func answers(version string) plan.Listing {
	return plan.Listing{Entries: []registry.Entry{{ID: "a", Version: version}}}
}

// TestFollowedIsAskedInItsTurn: a target is asked again after a while, which is longer the longer nothing changes
// there. In between the pass has what it listed last.
func TestFollowedIsAskedInItsTurn(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(epoch)
	r := &Reconciler{clock: clock, notes: map[string]*notes{}, pool: newPool(nil, nil, clock, 1)}
	at := plan.Target{Registry: "lb", Service: "web"}
	calls := 0
	pass := func(answer plan.Listing) *pass {
		p := following(r, namespace)
		asked := p.askOrRecall([]plan.Target{at})
		for _, target := range asked {
			calls++
			p.snapshot.Listings[target] = answer
		}
		p.noteFollowed(asked)
		return p
	}
	pass(answers("initial"))
	p := pass(answers("unasked"))
	checktest.Same(t, "calls at once", 1, calls)
	checktest.Same(t, "what the pass has instead", "initial", p.snapshot.Listings[at].Entries[0].Version)
	checktest.Same(t, "what it knows of that", plan.Followed{Again: epoch.Add(plan.FollowEvery), Stale: true}, p.snapshot.Followed[at])
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
	if p := pass(answers("back")); p.snapshot.Followed[at].Stale {
		t.Error("a registry that was down is not asked when its back-off is over")
	}
	clock.SetTime(clock.Now().Add(maxFollow))
	pass(plan.Listing{Err: registry.OneService(registry.Permanent(errors.New("none")))})
	p = pass(answers("unasked"))
	checktest.Same(t, "how long a service is left alone that cannot be listed", maxFollow, p.snapshot.Followed[at].Again.Sub(clock.Now()))
}

// TestFollowedTargetThatComesBack: a target whose Registration is deleted and created again is asked no sooner than if
// it had stayed.
func TestFollowedTargetThatComesBack(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(epoch)
	r := &Reconciler{clock: clock, notes: map[string]*notes{}, pool: newPool(nil, nil, clock, 1)}
	at := plan.Target{Registry: "lb", Service: "web"}
	p := following(r, namespace)
	p.snapshot.Listings[at] = answers("1")
	p.noteFollowed(p.askOrRecall([]plan.Target{at}))
	following(r, namespace).forget(nil)
	checktest.Same(t, "the targets that may be asked at once", 0, len(following(r, namespace).askOrRecall([]plan.Target{at})))
	clock.SetTime(clock.Now().Add(plan.FollowEvery))
	following(r, namespace).forget(nil)
	checktest.Same(t, "what is kept after that", 0, len(r.notesOf(namespace).followed))
}

// TestFollowedCallsAreBounded: however many namespaces ask, a Registry is called a few times a second, and each in its
// turn.
func TestFollowedCallsAreBounded(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(epoch)
	r := &Reconciler{clock: clock, notes: map[string]*notes{}, pool: newPool(nil, nil, clock, 1)}
	const namespaces, seconds = 100, 60
	calls := map[string]int{}
	for range seconds * 10 {
		for n := range namespaces {
			name := fmt.Sprint("n", n)
			p, at := following(r, name), plan.Target{Registry: "lb", Service: name}
			for _, target := range p.askOrRecall([]plan.Target{at}) {
				calls[name]++
				p.snapshot.Listings[target] = answers(fmt.Sprint(calls[name]))
				p.noteFollowed([]plan.Target{target})
			}
		}
		clock.SetTime(clock.Now().Add(time.Second / 10))
	}
	total, least := 0, seconds
	for n := range namespaces {
		total, least = total+calls[fmt.Sprint("n", n)], min(least, calls[fmt.Sprint("n", n)])
	}
	if most := seconds*int(listingsPerSecond) + listingsBurst; total > most || total < most*9/10 {
		t.Errorf("%d calls in %d s, want %d at most", total, seconds, most)
	}
	if least < 2 {
		t.Errorf("one namespace had %d calls, in all %d", least, total)
	}
}
