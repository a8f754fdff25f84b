// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/servers"
)

const (
	// patience is how far apart the watches of Pods and of entries may be.
	patience = time.Second
	// judgeEvery is how often the witness checks what it has not judged yet.
	judgeEvery = 100 * time.Millisecond
)

// witness watches Pods and entries, and counts entries that became unavailable to
// callers although their Pod was ready and not draining.
type witness struct {
	now func() time.Time

	mu      sync.Mutex
	changed chan struct{} // has one element after a change
	pods    map[types.UID]attendance
	listed  map[types.UID]time.Time // since when
	pending []departure
	testimony
}

// testimony is what was seen in one phase.
type testimony struct {
	joined, left int
	// wrong names the Pods whose entries left wrongly.
	wrong []string
}

// attendance is whether a Pod may be out of the registry.
type attendance struct {
	name string
	out  bool
	// lastOut is when it was last seen to be.
	lastOut time.Time
}

// departure is an entry that left.
type departure struct {
	uid types.UID
	// from is the earliest absence of the Pod that excuses the departure; due is when
	// the watch of Pods has certainly reported it.
	from, due time.Time
}

func newWitness(now func() time.Time) *witness {
	return &witness{
		now: now, changed: make(chan struct{}, 1),
		pods: map[types.UID]attendance{}, listed: map[types.UID]time.Time{},
	}
}

// mayBeOut reports whether callers need not find the Pod: it is not ready, drains, or
// is being changed.
func mayBeOut(pod *corev1.Pod) bool {
	switch stateOf(pod) {
	case apps.StatePreparingUpdate, apps.StateUpdating, apps.StatePreparingDelete:
		return true
	}
	return !inService(pod)
}

// saw receives the present version of a Pod.
func (w *witness) saw(pod *corev1.Pod, _ apps.LifecycleState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.pods[pod.UID]
	is := attendance{name: pod.Name, out: mayBeOut(pod), lastOut: was.lastOut}
	if was.out || is.out {
		is.lastOut = w.now()
	}
	w.pods[pod.UID] = is
}

// sighted receives a change of the registry.
func (w *witness) sighted(s servers.Sighting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	uid, now := types.UID(s.UID), w.now()
	if s.In {
		w.joined++
		w.listed[uid] = now
	} else {
		w.left++
		// An earlier absence of the Pod, before its entry came, is no excuse.
		from := s.Since.Add(-patience)
		if came := w.listed[uid]; came.After(from) {
			from = came
		}
		w.pending = append(w.pending, departure{uid: uid, from: from, due: now.Add(patience)})
		delete(w.listed, uid)
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// judge checks the departures that are due.
func (w *witness) judge() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var later []departure
	for _, d := range w.pending {
		pod, known := w.pods[d.uid]
		switch {
		case d.due.After(w.now()):
			later = append(later, d)
		case known && !pod.out && pod.lastOut.Before(d.from):
			w.wrong = append(w.wrong, pod.name)
		}
	}
	w.pending = later
}

// run judges until ctx ends.
func (w *witness) run(ctx context.Context) {
	tick := time.NewTicker(judgeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.judge()
		}
	}
}

// begin starts a new testimony.
func (w *witness) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.testimony = testimony{}
}

// end returns the testimony once everything is judged.
func (w *witness) end(ctx context.Context) (testimony, error) {
	tick := time.NewTicker(judgeEvery)
	defer tick.Stop()
	for {
		w.mu.Lock()
		said, open := w.testimony, len(w.pending)
		w.mu.Unlock()
		if open == 0 {
			return said, nil
		}
		select {
		case <-ctx.Done():
			return said, fmt.Errorf("%d entries that left are not judged: %w", open, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// anyone returns a Pod that is listed now; "" if there is none.
func (w *witness) anyone() types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := types.UID("")
	for uid := range w.listed {
		if first == "" || uid < first {
			first = uid
		}
	}
	return first
}

// await waits until that many entries are available to callers.
func (w *witness) await(ctx context.Context, entries int) error {
	return w.wait(ctx, func() string {
		if len(w.listed) == entries {
			return ""
		}
		return fmt.Sprintf("the registry has %d entries, and should have %d", len(w.listed), entries)
	})
}

// awaitMoves waits until that many entries have come and gone in this phase.
func (w *witness) awaitMoves(ctx context.Context, joined, left int) error {
	return w.wait(ctx, func() string {
		if w.joined >= joined && w.left >= left {
			return ""
		}
		return fmt.Sprintf("%d entries have come and %d gone, of %d and %d", w.joined, w.left, joined, left)
	})
}

// wait waits until lacking returns nothing. Callers hold the lock.
func (w *witness) wait(ctx context.Context, lacking func() string) error {
	for {
		w.mu.Lock()
		lack := lacking()
		w.mu.Unlock()
		if lack == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", lack, context.Cause(ctx))
		case <-w.changed:
		}
	}
}
