// SPDX-License-Identifier: Apache-2.0

package async

import (
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
)

// rig is an Executor whose passes run their tasks one after the other, and whose workers do nothing
// until the test runs them.
type rig struct {
	*Executor[string, string]
	width   int
	workers []func()
	// again are the Pods that are considered again.
	again []string
}

func newRig() *rig {
	r := &rig{width: 10}
	r.Executor = New[string](Config[string]{
		Width: func() int { return r.width },
		Each: func(limit func() int, times int, do func(int)) {
			for i := range times {
				_ = limit()
				do(i)
			}
		},
		Start: func(do func()) (wait func()) {
			do = sync.OnceFunc(do)
			r.workers = append(r.workers, do)
			return do
		},
		Again: func(pod *corev1.Pod) { r.again = append(r.again, pod.Name+" "+pod.ResourceVersion) },
	})
	return r
}

func pod(name, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
}

// of returns a task of a Pod with so many steps. The result of its last step is the Pod's name. Unless
// it is nil, did is called with the number of each step.
func of(name string, steps int, did func(step int)) *Task[string, string] {
	var at func(n int) Step[string]
	at = func(n int) Step[string] {
		return func() (string, Step[string]) {
			if did != nil {
				did(n)
			}
			if n == steps {
				return name, nil
			}
			return "", at(n + 1)
		}
	}
	return &Task[string, string]{Action: name, Pod: pod(name, "1"), Step: at(1)}
}

func never(*corev1.Pod) bool { return false }

func nothing(*corev1.Pod) Step[string] { return nil }

// step asks for a task of one step for each Pod.
func step(pod *corev1.Pod) Step[string] {
	return func() (string, Step[string]) { return pod.Name + " by an event", nil }
}

func actions(tasks []*Task[string, string]) []string {
	return list.Map(tasks, func(t *Task[string, string]) string { return t.Action })
}

// TestDetached: if another pass follows, a pass waits for the first step of its last tasks only. Until a worker has
// made the remaining steps, no other task of the Pod is accepted, and its result is collected once.
func TestDetached(t *testing.T) {
	r, steps := newRig(), 0
	last := of("c", 3, func(int) { steps++ })
	tasks := r.Open([]*Task[string, string]{of("a", 2, nil), of("b", 1, nil), last}, never, nothing)
	checktest.Same(t, "what the pass waits for: a, as c has not begun by then", []string{"a", "b"}, r.Run(tasks, true))
	checktest.Same(t, "steps of the last one", 1, steps)
	checktest.Same(t, "room while there is a leftover", 6, r.room())
	again := []*Task[string, string]{of("a", 1, nil), of("b", 1, nil), of("c", 1, nil)}
	checktest.Same(t, "what the next pass may do", []string{"a", "b"}, actions(r.Open(again, never, nothing)))
	checktest.Same(t, "unfinished at the end of the pass", true, r.Close(true))
	checktest.Same(t, "results so far", 0, len(r.Collect()))
	r.Wait()
	checktest.Same(t, "steps of the last one in the end", 3, steps)
	checktest.Same(t, "unfinished before they are collected", true, r.Close(true))
	checktest.Same(t, "results", []string{"c"}, r.Collect())
	checktest.Same(t, "results the second time", 0, len(r.Collect()))
	checktest.Same(t, "unfinished in the end", false, r.Close(true))
	checktest.Same(t, "room without one", 7, r.room())
	again = []*Task[string, string]{of("c", 1, nil)}
	checktest.Same(t, "what may be done then", []string{"c"}, actions(r.Open(again, never, nothing)))
}

// TestNotDetached: if no other pass follows, a pass waits for all steps.
func TestNotDetached(t *testing.T) {
	r := newRig()
	tasks := r.Open([]*Task[string, string]{of("a", 3, nil)}, never, nothing)
	checktest.Same(t, "results", []string{"a"}, r.Run(tasks, false))
	checktest.Same(t, "unfinished", false, r.Close(true))
}

// TestOutdated: a task on a Pod that has been written since the pass read it is not accepted, and events of that Pod
// do not wait for it. A task without a Pod is always accepted.
func TestOutdated(t *testing.T) {
	r := newRig()
	free := of("", 1, nil)
	free.Pod = nil
	tasks := []*Task[string, string]{of("a", 1, nil), free, free}
	accepted := r.Open(tasks, func(pod *corev1.Pod) bool { return pod.Name == "a" }, step)
	checktest.Same(t, "accepted", []string{"", ""}, actions(accepted))
	r.Offer(pod("a", "2"))
	r.Wait()
	checktest.Same(t, "results", []string{"a by an event"}, r.Collect())
}

// TestOffer: an event starts a task at once, unless a task of its Pod is unfinished: then the Pod is
// considered after that task, in the version of the last event. After a pass that did nothing, an event
// has to wait for the next pass.
func TestOffer(t *testing.T) {
	r := newRig()
	r.Offer(pod("a", "1"))
	checktest.Same(t, "workers before the first pass", 0, len(r.workers))
	busy := of("a", 1, func(int) { r.Offer(pod("a", "3")) })
	tasks := r.Open([]*Task[string, string]{busy}, never, step)
	r.Offer(pod("a", "2"))
	checktest.Same(t, "workers for a Pod with a task that waits", 0, len(r.workers))
	checktest.Same(t, "results of the pass", []string{"a"}, r.Run(tasks, true))
	checktest.Same(t, "what is looked at again", []string{"a 3"}, r.again)
	r.Close(true)
	r.Offer(pod("a", "4"))
	r.Offer(pod("a", "5")) // meanwhile
	checktest.Same(t, "workers after a pass that acted", 1, len(r.workers))
	r.Wait()
	checktest.Same(t, "results", []string{"a by an event"}, r.Collect())
	checktest.Same(t, "what is looked at again", []string{"a 3", "a 5"}, r.again)
	r.Close(false)
	r.Offer(pod("a", "6"))
	checktest.Same(t, "workers after a pass that did nothing", 1, len(r.workers))
	r.Open(nil, never, nothing)
	r.Offer(pod("a", "7"))
	checktest.Same(t, "workers if nothing is to be done", 1, len(r.workers))
}

// TestWorkers: no more workers are started than the width allows, and workers end when the width shrinks.
func TestWorkers(t *testing.T) {
	r := newRig()
	r.width = 2
	r.Open(nil, never, step)
	for _, name := range []string{"a", "b", "c", "d"} {
		r.Offer(pod(name, "1"))
	}
	checktest.Same(t, "workers", 2, len(r.workers))
	r.width = 1
	r.workers[0]() // it ends, because the other one suffices
	checktest.Same(t, "results of the first worker", 0, len(r.Collect()))
	r.workers[1]()
	checktest.Same(t, "results of the second worker", 4, len(r.Collect()))
	r.Offer(pod("e", "1"))
	checktest.Same(t, "workers that have been started", 3, len(r.workers))
}

// TestRoom: room is kept for Pods that come back, two more of them take the room of one task of a pass,
// a detached task of a pass takes as much room as a running one, and one task may always be running.
func TestRoom(t *testing.T) {
	r, taken := newRig(), []int{}
	r.width = 20
	for _, now := range []struct{ workers, leftovers int }{{0, 0}, {5, 0}, {9, 0}, {6, 2}, {2, 3}, {100, 0}} {
		r.Executor.workers, r.leftovers = now.workers, now.leftovers
		taken = append(taken, r.width-r.room())
	}
	checktest.Same(t, "the room that they take", []int{4, 4, 6, 6, 7, 19}, taken)
}

// TestAtOnce: passes, events and workers may use the Executor at the same time, and no result is lost.
func TestAtOnce(t *testing.T) {
	var e *Executor[string, string]
	e = New[string](Config[string]{
		Width: func() int { return 4 },
		Each: func(_ func() int, times int, do func(int)) {
			var all sync.WaitGroup
			for i := range times {
				all.Go(func() { do(i) })
			}
			all.Wait()
		},
		Start: func(do func()) (wait func()) {
			var all sync.WaitGroup
			all.Go(do)
			return all.Wait
		},
		Again: func(pod *corev1.Pod) { e.Offer(pod) },
	})
	names := []string{"a", "b", "c", "d", "e", "f"}
	results, accepted := 0, 0
	for range 50 {
		all := list.Map(names, func(name string) *Task[string, string] { return of(name, 3, nil) })
		tasks := e.Open(all, never, nothing)
		accepted += len(tasks)
		var events sync.WaitGroup
		for _, name := range names {
			events.Go(func() { e.Offer(pod(name, "2")) })
		}
		results += len(e.Run(tasks, true)) + len(e.Collect())
		events.Wait()
	}
	e.Wait()
	checktest.Same(t, "results", accepted, results+len(e.Collect()))
	checktest.Same(t, "unfinished", false, e.Close(true))
	checktest.Same(t, "unfinished tasks", 0, len(e.unfinished))
}
