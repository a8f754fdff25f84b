// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"sync"

	apisets "k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// lanes is the order in which sets wait for a pass: those of which a Pod has changed first. The Pod
// may be on its way back into service, and must not wait until all sets that only begin have
// begun. Within a lane whoever came first is next.
//
// controller-runtime's priority queue can block forever at shutdown until 0.25
// (kubernetes-sigs/controller-runtime#3538).
type lanes struct {
	mu sync.Mutex
	// ahead are the sets that are about to be added to the first lane.
	ahead apisets.Set[reconcile.Request]
	// waiting are all sets that wait, and whether in the first lane. A set that has changed
	// lanes is passed over in its old one.
	waiting     map[reconcile.Request]bool
	first, rest []reconcile.Request
}

var _ workqueue.Queue[reconcile.Request] = &lanes{}

func newLanes() *lanes {
	return &lanes{ahead: apisets.New[reconcile.Request](), waiting: map[reconcile.Request]bool{}}
}

// queue makes a work queue of the lanes.
func (l *lanes) queue(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) queue {
	type config = workqueue.TypedQueueConfig[reconcile.Request]
	ordered := workqueue.NewTypedWithConfig(config{Name: name, Queue: l})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{Name: name, Queue: ordered})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{
		Name: name, DelayingQueue: delaying,
	})
}

// addAhead returns a function that adds a set in the first lane.
func (l *lanes) addAhead(q queue) func(reconcile.Request) {
	return func(set reconcile.Request) {
		l.mu.Lock()
		l.ahead.Insert(set)
		l.mu.Unlock()
		q.Add(set)
	}
}

// Push adds a set that does not wait yet.
func (l *lanes) Push(set reconcile.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[set] = false; !l.toFirst(set) {
		l.rest = append(l.rest, set)
	}
}

// Touch is told of a set that is added while it waits.
func (l *lanes) Touch(set reconcile.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.toFirst(set)
}

// toFirst moves a set to the first lane if it belongs there.
func (l *lanes) toFirst(set reconcile.Request) bool {
	if !l.ahead.Has(set) {
		return false
	}
	l.ahead.Delete(set)
	if !l.waiting[set] {
		l.waiting[set] = true
		l.first = append(l.first, set)
	}
	return true
}

// Len is how many sets wait.
func (l *lanes) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// Pop takes the next set; there is one.
func (l *lanes) Pop() reconcile.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		lane := &l.rest
		if len(l.first) > 0 {
			lane = &l.first
		}
		set := (*lane)[0]
		*lane = (*lane)[1:]
		if inFirst, waits := l.waiting[set]; waits && inFirst == (lane == &l.first) {
			delete(l.waiting, set)
			return set
		}
	}
}
