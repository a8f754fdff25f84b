// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// queue is a work queue of one worker: a request that comes while one of the
// same name is worked on waits for it to end; several become one.
type queue struct {
	// The verbs below are all that event handlers use of a work queue.
	workqueue.TypedRateLimitingInterface[reconcile.Request]

	world   *World
	work    func(reconcile.Request) (reconcile.Result, error)
	busy    bool
	waiting []reconcile.Request
	// due is when a request comes in that was put off.
	due map[reconcile.Request]time.Time
	// failures counts the failures in a row, for the back-off.
	failures map[reconcile.Request]int
	// pause is how long the worker takes to pick up a request.
	pause   func() time.Duration
	stopped bool
	planned bool
}

// Add puts a request in, unless it is there.
func (q *queue) Add(r reconcile.Request) {
	if q.stopped {
		return
	}
	for _, other := range q.waiting {
		if other == r {
			return
		}
	}
	q.waiting = append(q.waiting, r)
	q.wake()
}

// AddAfter puts a request in later. Of several times for one request only the
// first one counts, as in a real queue.
func (q *queue) AddAfter(r reconcile.Request, delay time.Duration) {
	at := q.world.now().Add(delay)
	if due, ok := q.due[r]; ok && !due.After(at) {
		return
	}
	q.due[r] = at
	q.world.after(delay, func() {
		if q.due[r].Equal(at) {
			delete(q.due, r)
			q.Add(r)
		}
	})
}

func (q *queue) wake() {
	if q.busy || q.planned || q.stopped || len(q.waiting) == 0 {
		return
	}
	q.planned = true
	q.world.after(q.pause(), q.run)
}

// run works on the first request that waits.
func (q *queue) run() {
	q.planned = false
	if q.stopped || q.busy || len(q.waiting) == 0 {
		return
	}
	request := q.waiting[0]
	q.waiting = q.waiting[1:]
	q.busy = true
	result, err := q.work(request)
	q.busy = false
	if q.stopped {
		return
	}
	q.finish(request, result, err)
	q.wake()
}

// finish does what controller-runtime does with the result of a pass.
func (q *queue) finish(request reconcile.Request, result reconcile.Result, err error) {
	switch {
	case err != nil:
		delay := 5 * time.Millisecond << min(q.failures[request], 17)
		q.failures[request]++
		q.AddAfter(request, min(delay, 1000*time.Second))
	case result.RequeueAfter > 0:
		delete(q.failures, request)
		q.AddAfter(request, result.RequeueAfter)
	default:
		delete(q.failures, request)
	}
}
