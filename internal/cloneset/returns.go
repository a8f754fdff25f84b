// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// returns are the Pods that come back into service while a pass over their set goes on, or is about to
// follow. Far from the API server, or in a large set, a pass takes long, and a Pod that became ready at
// its beginning would be out of service until the next one. To put it back concerns no other Pod and no
// budget, so it is done beside the passes, and none of them waits for its end. What a pass leaves of its last
// actions ends beside the next one, too.
type returns struct {
	mu sync.Mutex
	// snapshot is that of the latest pass, over the set with that UID; nil after one that did nothing.
	// selector is the set's, and perform does an action for it.
	snapshot *plan.Snapshot
	set      types.UID
	perform  func(plan.Action) outcome
	selector labels.Selector
	// busy are the Pods that an action concerns which has not ended, of a pass or beside it, each as the
	// last event since it began has shown it, or nil.
	busy map[types.UID]*corev1.Pod
	// begin is what nobody has begun, workers are how many do it, and waits wait for those. rests are the
	// actions of passes among all that.
	begin    []func() outcome
	workers  atomic.Int32
	rests    atomic.Int32
	waits    []func()
	outcomes []outcome
}

// open begins to accept a set's Pods by a new snapshot, except those that the actions of the pass
// concern, until each has ended. It leaves out actions on Pods that have been written, or are, since the
// pass read them: those would do the same, or are decided again in the next pass.
func (b *returns) open(
	set *apps.CloneSet, s *plan.Snapshot, actions []plan.Action, written *overlay[*corev1.Pod], perform func(plan.Action) outcome,
) (left []plan.Action) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set, b.snapshot, b.perform = set.UID, s, perform
	b.selector, _ = selectorOf(set) // unreadable only if the set is being deleted: then no Pod returns
	return slices.DeleteFunc(slices.Clone(actions), func(a plan.Action) bool {
		if a.Pod == nil {
			return false
		}
		_, busy := b.busy[a.Pod.UID]
		if busy = busy || written.newest(set.UID, a.Pod) != a.Pod; !busy {
			b.busy[a.Pod.UID] = nil
		}
		return busy
	})
}

// ended notes that an action has ended, and returns its Pod as an event has shown it meanwhile; nil if
// none has.
func (b *returns) ended(a *plan.Action) (seen *corev1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.Pod != nil {
		seen = b.busy[a.Pod.UID]
		delete(b.busy, a.Pod.UID)
	}
	return seen
}

// learn returns what came of what was done beside the passes and has ended, after what is under way if it
// is to wait for that.
func (b *returns) learn(wait bool) []outcome {
	var waits []func()
	b.mu.Lock()
	if wait || b.workers.Load() == 0 {
		waits, b.waits = b.waits, nil
	}
	b.mu.Unlock()
	for _, end := range waits {
		end()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	outcomes := b.outcomes
	b.outcomes = nil
	return outcomes
}

// shut ends a pass, and reports whether work in the background is unfinished: another pass has to collect its
// results. A pass that acted is followed by one in any case, because its writes cause events: until then
// its snapshot decides.
func (b *returns) shut(acted bool) (unfinished bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !acted {
		b.snapshot = nil
	}
	return len(b.outcomes)+int(b.workers.Load()) > 0
}

// accepts reports whether a Pod that has changed is to be looked at now. One that an action of the pass
// concerns will be.
func (b *returns) accepts(set types.UID, pod *corev1.Pod) bool {
	if _, busy := b.busy[pod.UID]; busy {
		b.busy[pod.UID] = pod
		return false
	}
	return b.set == set && b.snapshot != nil
}

// next does what is to be done next, as one of at most so many workers, and reports whether there was anything.
func (b *returns) next(most int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.begin) == 0 || int(b.workers.Load()) > most {
		b.workers.Add(-1)
		return false
	}
	do := b.begin[0]
	b.begin = b.begin[1:]
	b.mu.Unlock()
	done := do()
	done.beside = true
	b.mu.Lock()
	b.outcomes = append(b.outcomes, done)
	return true
}

// returned puts a Pod that has changed back into service, if a pass over its set goes on or has
// acted. Otherwise the next pass does it.
func (r *Reconciler) returned(pod *corev1.Pod) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return
	}
	value, known := r.states.Load(types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name})
	if !known {
		return
	}
	b := &value.(*setState).shared.returns
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.accepts(owner.UID, pod) {
		return
	}
	pod = r.pods.newest(owner.UID, pod)
	action, ok := r.Return(b.snapshot, pod, r.Clock.Now())
	// The pass may have released it, or the next one will.
	if now := metav1.GetControllerOfNoCopy(pod); !ok || now == nil || now.UID != owner.UID || !b.selector.Matches(labels.Set(pod.Labels)) {
		return
	}
	r.metrics.planned(&action)
	b.busy[pod.UID] = nil
	perform := b.perform
	r.queue(b, func() outcome { return r.end(b, perform(action)) })
}

// end does what is left of an action, and then looks at its Pod, if an event has told of that meanwhile: it
// may be ready before the answer to the write that restarts it.
func (r *Reconciler) end(b *returns, o outcome) outcome {
	for o.rest != nil {
		o = o.rest()
	}
	if seen := b.ended(&o.action); seen != nil {
		r.returned(seen)
	}
	return o
}

// queue has something done beside the passes; the caller holds the lock.
func (r *Reconciler) queue(b *returns, do func() outcome) {
	b.begin = append(b.begin, do)
	if int(b.workers.Load()) >= r.Width.Now() {
		return
	}
	b.workers.Add(1)
	b.waits = append(b.waits, r.Beside(func() {
		for b.next(r.Width.Now()) {
		}
	}))
}

// inGoroutine does something beside everything else.
func inGoroutine(do func()) (wait func()) {
	var all sync.WaitGroup
	all.Go(do)
	return all.Wait
}

// inGoroutines does something so many times, each in a goroutine, as many at once as limit says then.
func inGoroutines(limit func() int, times int, do func(int)) {
	ended := make(chan struct{})
	for begun, done := 0, 0; done < times; done++ {
		for ; begun < times && begun-done < limit(); begun++ {
			i := begun
			go func() { do(i); ended <- struct{}{} }()
		}
		<-ended
	}
}
