// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/servers"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

const (
	// tolerance is by how much the watches of Pods and of entries may lag behind each other.
	tolerance = time.Second
	// judgeEvery is how often removals are checked that are still to be judged.
	judgeEvery = 100 * time.Millisecond
)

// entryWatch watches Pods and entries, and counts entries that became unavailable to
// callers although their Pod was ready and not draining.
type entryWatch struct {
	stage.Watched
	now func() time.Time

	pods    map[types.UID]podService
	listed  map[types.UID]time.Time // since when
	deleted map[types.UID]time.Time // when deleteMeanwhile deleted Pods whose entry is still listed
	pending []removal
	moves
}

// moves are the changes of the registry in one step.
type moves struct {
	joined, left int
	// gone has, for Pods that deleteMeanwhile deleted, the times from the deletion until the entry was
	// removed.
	gone traffic.Latencies
	// wrong names the Pods whose entries were removed wrongly.
	wrong []string
}

// podService says whether a Pod may be missing in the registry.
type podService struct {
	name string
	out  bool
	// lastOut is when it was last allowed to be missing.
	lastOut time.Time
}

// removal is an entry that was removed.
type removal struct {
	uid types.UID
	// from is the earliest absence of the Pod that excuses the removal; due is when the
	// watch of Pods has certainly reported it.
	from, due time.Time
}

func newEntryWatch(now func() time.Time) *entryWatch {
	return &entryWatch{now: now, pods: map[types.UID]podService{}, listed: map[types.UID]time.Time{}, deleted: map[types.UID]time.Time{}}
}

// mayBeOut reports whether callers need not find the Pod: it is not ready, drains, or
// is being changed.
func mayBeOut(pod *corev1.Pod) bool {
	switch stateOf(pod) {
	case apps.StatePreparingUpdate, apps.StateUpdating, apps.StatePreparingDelete:
		return true
	case apps.StatePreparingNormal, apps.StateNormal, apps.StateUpdated:
	}
	return !inService(pod)
}

// saw receives the present version of a Pod.
func (w *entryWatch) saw(pod *corev1.Pod, _ apps.LifecycleState) {
	w.Change(func() {
		was := w.pods[pod.UID]
		is := podService{name: pod.Name, out: mayBeOut(pod), lastOut: was.lastOut}
		if was.out || is.out {
			is.lastOut = w.now()
		}
		w.pods[pod.UID] = is
	})
}

// sighted receives a change of the registry.
func (w *entryWatch) sighted(s servers.Sighting) {
	w.Change(func() {
		uid, now := types.UID(s.UID), w.now()
		if s.In {
			w.joined++
			w.listed[uid] = now
			return
		}
		w.left++
		if when, ok := w.deleted[uid]; ok {
			w.gone = append(w.gone, now.Sub(when))
			delete(w.deleted, uid)
		}
		// An earlier absence of the Pod, before its entry came, is no excuse.
		from := list.Latest(s.Since.Add(-tolerance), w.listed[uid])
		w.pending = append(w.pending, removal{uid: uid, from: from, due: now.Add(tolerance)})
		delete(w.listed, uid)
	})
}

// judge checks the removals that are due.
func (w *entryWatch) judge() {
	w.Change(func() {
		w.pending = slices.DeleteFunc(w.pending, func(r removal) bool {
			if r.due.After(w.now()) {
				return false
			}
			if pod, known := w.pods[r.uid]; known && !pod.out && pod.lastOut.Before(r.from) {
				w.wrong = append(w.wrong, pod.name)
			}
			return true
		})
	})
}

// run judges until ctx ends.
func (w *entryWatch) run(ctx context.Context) {
	for stage.Pause(ctx, judgeEvery) == nil {
		w.judge()
	}
}

// begin starts new counts, end returns them once everything is judged.
func (w *entryWatch) begin() { w.Change(func() { w.moves = moves{} }) }

func (w *entryWatch) end(ctx context.Context) (moves, error) {
	err := w.Await(ctx, func() string {
		return stage.Unless(len(w.pending) == 0, "%d entries that left are not judged", len(w.pending))
	})
	var counted moves
	w.Read(func() { counted = w.moves })
	return counted, err
}

// first returns a Pod that is listed now; "" if there is none.
func (w *entryWatch) first() (uid types.UID) {
	w.Read(func() {
		if len(w.listed) > 0 {
			uid = slices.Min(slices.Collect(maps.Keys(w.listed)))
		}
	})
	return uid
}

// delete returns the name of a Pod that is listed and in service, and records it as deleted now; "" if
// there is none.
func (w *entryWatch) delete() (name string) {
	w.Change(func() {
		for _, uid := range slices.Sorted(maps.Keys(w.listed)) {
			pod, known := w.pods[uid]
			if _, already := w.deleted[uid]; known && !pod.out && !already {
				w.deleted[uid], name = w.now(), pod.name
				return
			}
		}
	})
	return name
}

// awaitDeleted waits until the entries of all deleted Pods are removed.
func (w *entryWatch) awaitDeleted(ctx context.Context) error {
	return w.Await(ctx, func() string {
		return stage.Unless(len(w.deleted) == 0, "the registry has entries of %d Pods that were deleted", len(w.deleted))
	})
}

// await waits until that many entries are available to callers.
func (w *entryWatch) await(ctx context.Context, entries int) error {
	return w.Await(ctx, func() string {
		return stage.Unless(len(w.listed) == entries, "the registry has %d entries, and should have %d", len(w.listed), entries)
	})
}

// awaitMoves waits until that many entries have been added or removed in this step.
func (w *entryWatch) awaitMoves(ctx context.Context, n int) error {
	return w.Await(ctx, func() string {
		return stage.Unless(max(w.joined, w.left) >= n, "%d entries have come and %d gone, there should be %d", w.joined, w.left, n)
	})
}
