// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"iter"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

// epoch is when every run starts.
var epoch = time.Date(2030, time.January, 1, 12, 0, 0, 0, time.UTC)

// World holds the time, the randomness and the story of a run. Things happen one at a
// time, ordered by their time, and at the same time in the order in which they were
// planned.
type World struct {
	Clock *testclock.FakePassiveClock
	// chance is the only source of randomness.
	chance *rand.Rand
	// agenda holds the planned events, in their order.
	agenda []planned
	story  story
	// failure is the first broken invariant.
	failure *Violation
	// steps counts the events so far.
	steps int
	// steady removes randomness from durations, except for deviations of up to jitter.
	steady bool
	jitter time.Duration
	// doing is the errand in progress; nil if there is none.
	doing *errand
	// leaps is called before the time advances; it may be nil.
	leaps func(to time.Time)
}

// errand is a task that runs in virtual time, concurrently with others.
type errand struct{ wait, goOn func() }

func newWorld(seed uint64) *World {
	return &World{Clock: testclock.NewFakePassiveClock(epoch), chance: rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15))}
}

func (w *World) now() time.Time { return w.Clock.Now() }

// after plans an event.
func (w *World) after(delay time.Duration, do func()) {
	at := w.now().Add(max(delay, 0))
	i := sort.Search(len(w.agenda), func(i int) bool { return w.agenda[i].at.After(at) })
	w.agenda = slices.Insert(w.agenda, i, planned{at: at, do: do})
}

// runUntil runs everything planned up to a time.
func (w *World) runUntil(at time.Time) {
	for len(w.agenda) > 0 && !w.agenda[0].at.After(at) && w.failure == nil {
		w.step()
	}
	if at.After(w.now()) {
		w.Clock.SetTime(at)
	}
}

// step runs the next event.
func (w *World) step() {
	e := w.agenda[0]
	if w.leaps != nil {
		w.leaps(e.at)
	}
	w.agenda = slices.Delete(w.agenda, 0, 1)
	if e.at.After(w.now()) {
		w.Clock.SetTime(e.at)
	}
	w.steps++
	e.do()
}

// idle reports whether nothing is planned.
func (w *World) idle() bool { return len(w.agenda) == 0 }

// pass lets some time pass in the middle of an event.
func (w *World) pass(span time.Duration) {
	switch e := w.doing; {
	case e == nil:
		w.runUntil(w.now().Add(span))
	case span > 0:
		w.after(span, e.goOn)
		e.wait()
	}
}

// errand starts a task. While the task lets time pass, everything else continues.
func (w *World) errand(do func()) { w.errandIn(func(goOn func()) { goOn() }, do) }

// errandIn starts a task; surround is called around each part of it.
func (w *World) errandIn(surround func(goOn func()), do func()) {
	e := &errand{}
	next, _ := iter.Pull(func(yield func(struct{}) bool) { // the iterator is never stopped
		e.wait = func() { yield(struct{}{}) }
		do()
	})
	e.goOn = func() {
		w.doing = e
		surround(func() { next() })
		w.doing = nil
	}
	e.goOn()
}

// roll returns true with a probability.
func (w *World) roll(probability float64) bool {
	return probability > 0 && w.chance.Float64() < probability
}

// between draws a duration.
func (w *World) between(low, high time.Duration) time.Duration {
	if w.steady {
		middle := low + (high-low)/2
		low, high = middle-w.jitter, middle+w.jitter
	}
	if high <= low {
		return max(0, low)
	}
	return max(0, low+time.Duration(w.chance.Int64N(int64(high-low))))
}

// pick draws one of several values.
func pick[T any](w *World, from ...T) T { return from[w.chance.IntN(len(from))] }

// planned is an event.
type planned struct {
	at time.Time
	do func()
}
