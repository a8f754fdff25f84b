// SPDX-License-Identifier: Apache-2.0

// Package async runs the tasks of one set: what a pass decided for each Pod, and what an event asks for
// between two passes. A task is a series of steps. Its states:
//
//	Run     queued → running ──────────→ done
//	                    └──→ detached ──→ done
//	Offer                    detached ──→ done
//
// A pass waits for its running tasks. Detached tasks belong to no pass: workers run them in the
// background, and a later pass collects their results. So a pass may end before the last steps of its
// tasks. Without that, few writes would be under way at the end of each pass if the API server is far
// away, and a Pod that became ready early in a long pass would stay out of service until the next one.
//
// At most one task of a Pod is unfinished.
package async

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/cloneset/width"
	"github.com/usher-dev/usher/internal/list"
)

// Step does one part of a task. It returns the next part, or the task's result if there is none.
type Step[R any] func() (result R, next Step[R])

// Task carries out an action in a series of steps.
type Task[A, R any] struct {
	// Action is for the caller.
	Action A
	// Pod is the Pod that the task changes; nil if there is none.
	Pod *corev1.Pod
	// Step is the first step.
	Step Step[R]

	state state
	// ofPass means that a pass began the task, not an event.
	ofPass bool
	// seen is the Pod as the last event since the task was accepted has shown it; nil if there was none.
	seen *corev1.Pod
}

// state is how far a task is.
type state int

const (
	// queued: a pass has accepted the task, and has not begun it.
	queued state = iota
	// running: a pass waits for the task.
	running
	// detached: a worker runs the task, or will.
	detached
	// done: the task has a result.
	done
)

// Config says how an Executor works.
type Config[R any] struct {
	// Width returns how many tasks may be under way now.
	Width func() int
	// Each calls do for 0 to times-1, starting the calls in this order, at most limit() of them at a
	// time. limit is asked before each start and returns at least 1. Each returns when all calls have
	// returned.
	Each func(limit func() int, times int, do func(int))
	// Start calls do in the background, not before Start has returned. It returns a function that waits
	// for its end.
	Start func(do func()) (wait func())
	// Again is called after a task if an event has shown its Pod meanwhile, with that version: the Pod
	// may be ready before the answer arrives to the write that restarted it.
	Again func(*corev1.Pod)
}

// Executor runs the tasks of one set. Create one with New.
type Executor[A, R any] struct {
	config Config[R]

	mu sync.Mutex
	// decide returns the first step of what an event asks for. The field is nil between a pass that did
	// nothing and the next one.
	decide func(*corev1.Pod) Step[R]
	// unfinished are the tasks that are not done, by the UID of their Pod.
	unfinished map[types.UID]*Task[A, R]
	// queue holds the detached tasks that no worker has taken.
	queue []*Task[A, R]
	// workers counts the workers; each of waits waits for the end of one.
	workers int
	waits   []func()
	// leftovers counts the detached tasks that a pass began.
	leftovers int
	// results are those of detached tasks that are done.
	results []R
}

// New returns an Executor without tasks.
func New[A, R any](config Config[R]) *Executor[A, R] {
	return &Executor[A, R]{config: config, unfinished: map[types.UID]*Task[A, R]{}}
}

// Open begins a pass. It accepts the pass's tasks, except those on Pods that have an unfinished task,
// or that have been written since the pass read them, according to outdated: the next pass decides on
// these again. From now on, decide says what an event asks for. It is called with the Executor locked,
// so it must not wait.
func (e *Executor[A, R]) Open(
	tasks []*Task[A, R], outdated func(*corev1.Pod) bool, decide func(*corev1.Pod) Step[R],
) (accepted []*Task[A, R]) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.decide = decide
	accepted = list.Only(tasks, func(t *Task[A, R]) bool {
		return t.Pod == nil || e.unfinished[t.Pod.UID] == nil && !outdated(t.Pod)
	})
	for _, t := range accepted {
		t.state, t.ofPass = queued, true
		if t.Pod != nil {
			e.unfinished[t.Pod.UID] = t
		}
	}
	return accepted
}

// Close ends a pass, and reports whether detached tasks have results that no pass has collected, or
// will have some. After a pass that acted, events still start tasks: its writes cause another pass,
// which collects their results. After other passes, events start none.
func (e *Executor[A, R]) Close(acted bool) (unfinished bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !acted {
		e.decide = nil
	}
	return e.workers+len(e.results) > 0
}

// Offer hands the Executor a Pod that has changed. If the Pod has an unfinished task, it is considered
// after that task.
func (e *Executor[A, R]) Offer(pod *corev1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.unfinished[pod.UID]; t != nil {
		t.seen = pod
		return
	}
	if e.decide == nil {
		return
	}
	if step := e.decide(pod); step != nil {
		t := &Task[A, R]{Pod: pod, Step: step}
		e.unfinished[pod.UID] = t
		e.detach(t)
	}
}

// Run runs accepted tasks of a pass in parallel, in their order, and returns the results of those that are done
// when it returns. With more, another pass follows: once all tasks have begun, a task is detached after its first
// step, so that the next pass sees its effect and need not wait for the remaining steps.
func (e *Executor[A, R]) Run(tasks []*Task[A, R], more bool) []R {
	all, results := &run[A, R]{Executor: e, waiting: len(tasks)}, make([]*R, len(tasks))
	e.config.Each(e.room, len(tasks), func(i int) {
		all.begin(tasks[i])
		result, next := tasks[i].Step()
		if next != nil && more && all.detachLast(tasks[i], next) {
			return
		}
		result = remaining(result, next)
		e.end(tasks[i], result)
		results[i] = &result
	})
	ended := list.Only(results, func(result *R) bool { return result != nil })
	return list.Map(ended, func(result *R) R { return *result })
}

// room returns how many tasks of a pass may be running now. A detached task that a pass began takes as
// much room as a running one; width.Room says how much room the tasks of events take.
func (e *Executor[A, R]) room() int {
	now := e.config.Width()
	e.mu.Lock()
	defer e.mu.Unlock()
	return width.Room(now-e.leftovers, max(e.workers-e.leftovers, 0))
}

// run is one call of Run. waiting counts its tasks that have not begun; the Executor's lock guards it.
type run[A, R any] struct {
	*Executor[A, R]
	waiting int
}

// begin moves a task from queued to running.
func (a *run[A, R]) begin(t *Task[A, R]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting--
	t.state = running
}

// detachLast moves a task from running to detached if no other one waits to begin, and reports whether it did.
func (a *run[A, R]) detachLast(t *Task[A, R], next Step[R]) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting > 0 {
		return false
	}
	t.Step = next
	a.leftovers++
	a.detach(t)
	return true
}

// remaining runs the remaining steps of a task, and returns its result.
func remaining[R any](result R, next Step[R]) R {
	for next != nil {
		result, next = next()
	}
	return result
}

// detach leaves a task to the workers, and starts another worker if there may be more. The caller holds
// the lock.
func (e *Executor[A, R]) detach(t *Task[A, R]) {
	t.state = detached
	e.queue = append(e.queue, t)
	if e.workers < e.config.Width() {
		e.workers++
		e.waits = append(e.waits, e.config.Start(e.work))
	}
}

// work runs detached tasks until there are none, or too many workers.
func (e *Executor[A, R]) work() {
	for t := e.take(); t != nil; t = e.take() {
		e.end(t, remaining(t.Step()))
	}
}

// take takes a task from the queue. If the worker is to end, take uncounts it and returns nil.
func (e *Executor[A, R]) take() *Task[A, R] {
	most := e.config.Width()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) > 0 && e.workers <= most {
		t := e.queue[0]
		e.queue = e.queue[1:]
		return t
	}
	if e.workers--; e.workers == 0 {
		e.waits = nil
	}
	return nil
}

// end moves a task to done, and has its Pod looked at again if an event has shown it meanwhile.
func (e *Executor[A, R]) end(t *Task[A, R], result R) {
	if seen := e.finish(t, result); seen != nil {
		e.config.Again(seen)
	}
}

// finish moves a task to done, keeps its result for Collect if the task is detached, and returns its Pod as the
// last event has shown it; nil if none has.
func (e *Executor[A, R]) finish(t *Task[A, R], result R) (seen *corev1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.Pod != nil {
		delete(e.unfinished, t.Pod.UID)
	}
	if t.state == detached {
		e.results = append(e.results, result)
	}
	if t.state == detached && t.ofPass {
		e.leftovers--
	}
	t.state = done
	return t.seen
}

// Wait waits for the workers that run now.
func (e *Executor[A, R]) Wait() {
	for _, wait := range e.takeWaits() {
		wait()
	}
}

// takeWaits returns and removes the waits for the workers that run now.
func (e *Executor[A, R]) takeWaits() []func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	waits := e.waits
	e.waits = nil
	return waits
}

// Collect returns the results of detached tasks that are done and that it has not returned before.
func (e *Executor[A, R]) Collect() []R {
	e.mu.Lock()
	defer e.mu.Unlock()
	collected := e.results
	e.results = nil
	return collected
}
