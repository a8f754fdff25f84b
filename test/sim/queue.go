// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// queue is a work queue with one worker: a request that arrives while another one of
// the same name is processed waits until that is done, and duplicates are merged.
type queue struct {
	// The methods below are all that event handlers use of a work queue.
	workqueue.TypedRateLimitingInterface[reconcile.Request]

	world   *World
	work    func(reconcile.Request) (reconcile.Result, error)
	busy    bool
	waiting []reconcile.Request
	// due is when a delayed request is added.
	due map[reconcile.Request]time.Time
	// failures counts consecutive failures, for the backoff.
	failures map[reconcile.Request]int
	// pause is how long the worker takes to pick up a request.
	pause   func() time.Duration
	stopped bool
	planned bool
}

// Add adds a request unless it is already queued.
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

// AddAfter adds a request later. Of several times for one request only the earliest
// counts, as in a real queue.
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

// run processes the first waiting request.
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

// finish handles the result of a pass as controller-runtime does.
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
