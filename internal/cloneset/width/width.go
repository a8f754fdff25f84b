// SPDX-License-Identifier: Apache-2.0

// Package width finds out how many writes the API server takes at a time.
//
// It follows TCP Vegas as Netflix's concurrency-limits adapted it to requests. The least latency of
// recent writes is that of a write that did not wait. With w writes under way, a latency of twice the
// least means that about half of the w writes wait in a queue. The width grows while the queue is short
// and shrinks when it is long, so the server always has work, and nobody else's write, a kubelet's for
// instance, waits behind more than a few of ours. Libraries for this measure with the machine's clock,
// which no simulation can set; and the algorithm is short.
package width

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// least is the smallest width: with fewer writes under way, round trips would bound a
	// rollout and not the API server.
	least = 4
	// first is the width before the first answer.
	first = 16
	// refused is the share of the width that remains after an answer that asks for fewer requests.
	refused = 0.7
	// stalled is the least time of a write that client-go has repeated after such an answer:
	// Retry-After has whole seconds.
	stalled = time.Second
	// tolerance is the multiple of the least latency that still counts as no wait: latencies vary.
	tolerance = 1.05
	// memory is how long the least latency of a kind of write counts: for memory × width writes of that
	// kind, with at least the first width. Later it is measured anew: the network, or the server, may
	// have changed. A pass has fewer writes, and its first ones do not wait for others, so each period
	// has writes that did not wait.
	memory = 4
	// kept is the part of the width that is reserved for writes that bring Pods back into service, at
	// most a third of it. They need not wait behind writes that take Pods out: the server is busy
	// either way.
	kept = 4
)

// Width is how many writes may be under way at a time. It is safe for concurrent use.
type Width struct {
	underway atomic.Int64

	mu     sync.Mutex
	most   float64
	value  float64
	floors map[string]*floor
	// rested counts the writes since a refusal last shrank the width. Refusals of writes that were
	// under way then say nothing new.
	rested int
}

// floor is the least recent latency of a kind of write.
type floor struct {
	before, now time.Duration
	count       int
}

// New returns a Width of at most that many writes; below 4 it is constant.
func New(most int) *Width {
	w := &Width{most: float64(max(most, 1)), floors: map[string]*floor{}}
	w.value = min(first, w.most)
	return w
}

// Now returns how many writes may be under way.
func (w *Width) Now() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int(w.value)
}

// Room returns the part of a width for writes that take Pods out of service. Beyond the part that is
// kept for Pods that come back, two of these take the room of one that leaves. If each took its own,
// Pods that left together would hold up all others when they return, and the rollout would go on in
// waves.
func Room(width, returning int) int {
	keep := min(kept, width/3)
	return max(width-max(keep, (keep+returning)/2), 1)
}

// Begin counts a write that is sent. Call Done or Failed when it has ended.
func (w *Width) Begin() { w.underway.Add(1) }

// Failed ends a write that was not carried out. Its latency does not count: an immediate error, while
// the API server restarts for instance, would pass for the best latency.
func (w *Width) Failed() { w.underway.Add(-1) }

// Done learns from a write: its kind (writes of one kind cost about the same), how long it
// took, and whether the server asked for fewer requests.
func (w *Width) Done(kind string, took time.Duration, tooMany bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	busy := float64(w.underway.Load()) > w.value/2
	w.underway.Add(-1)
	w.rested++
	if w.floors[kind] == nil {
		w.floors[kind] = &floor{before: math.MaxInt64, now: math.MaxInt64}
	}
	waited := 0.0
	if !tooMany { // a refusal is fast
		waited = w.floors[kind].share(took, memory*int(max(first, w.value)))
		tooMany = took >= stalled && waited > 0.9
	}
	change := 0.0
	switch {
	case tooMany && w.rested >= int(w.value):
		w.rested = 0
		change = (refused - 1) * w.value
	case tooMany || !busy: // a width that is not used proves nothing
	default:
		change = step(w.value, math.Ceil(w.value*waited)) / w.value
	}
	w.value = max(min(least, w.most), min(w.most, w.value+change))
}

// step returns Vegas's decision: the change of the width after as many writes as the width. Its
// thresholds are Netflix's, except the one beyond which the width shrinks fast. That threshold and the
// sizes of the steps were chosen by measurement: Pods are out of service for the shortest time at
// nearly the same Pods/s (TestRollouts, TestCollects, docs/measurements).
func step(width, queue float64) float64 {
	unit := max(1, math.Log10(width))
	switch {
	case queue <= unit:
		return 9 * unit
	case queue < 3*unit:
		return unit
	case queue > 8*unit: // the server has become slower, as while it collects garbage
		return -12 * unit
	case queue > 6*unit:
		return -unit
	}
	return 0
}

// share returns the part of a write's time that was waiting, from 0 to below 1. Its base is the shortest time among at
// least this many writes.
func (f *floor) share(took time.Duration, writes int) float64 {
	f.now = min(f.now, took)
	shortest := min(f.before, f.now)
	if f.count++; f.count >= writes {
		f.before, f.now, f.count = f.now, math.MaxInt64, 0
	}
	if took <= 0 {
		return 0
	}
	return max(0, 1-tolerance*float64(shortest)/float64(took))
}
