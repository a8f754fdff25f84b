// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// returns are the Pods that come back into service while their set's pass waits for its writes.
// Far from the API server a pass takes several round trips, and a Pod that became ready at its
// beginning would be out of service until the next one. To put it back concerns no other Pod and
// no budget, so it is done beside the pass.
type returns struct {
	mu sync.Mutex
	// snapshot is that of the pass, over the set with that UID; nil while none writes. perform
	// does an action for it.
	snapshot *plan.Snapshot
	set      types.UID
	perform  func(plan.Action) outcome
	// acting are the Pods that an action of the pass, or a return, concerns that has not ended.
	acting sets.Set[types.UID]
	// actions are the returns that nobody has begun, and waits wait for those who do them.
	actions  []plan.Action
	workers  int
	waits    []func()
	outcomes []outcome
}

// open begins to accept Pods, except those that the actions of the pass concern, until each has
// ended.
func (b *returns) open(set types.UID, s *plan.Snapshot, actions []plan.Action, perform func(plan.Action) outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set, b.snapshot, b.perform, b.acting = set, s, perform, sets.Set[types.UID]{}
	for i := range actions {
		if pod := actions[i].Pod; pod != nil {
			b.acting.Insert(pod.UID)
		}
	}
}

// ended notes that an action of the pass has ended.
func (b *returns) ended(a *plan.Action) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.Pod != nil {
		b.acting.Delete(a.Pod.UID)
	}
}

// close accepts no more Pods, waits for those that are under way, and returns what came of them.
// The next pass does the rest.
func (b *returns) close() []outcome {
	b.mu.Lock()
	waits := b.waits
	b.snapshot, b.actions, b.waits = nil, nil, nil
	b.mu.Unlock()
	for _, wait := range waits {
		wait()
	}
	outcomes := b.outcomes
	b.outcomes = nil
	return outcomes
}

// next ends a return, and takes another one, for one of at most so many that do them.
func (b *returns) next(last *outcome, most int) (plan.Action, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last != nil {
		b.outcomes = append(b.outcomes, *last)
		b.acting.Delete(last.action.Pod.UID)
	}
	if len(b.actions) == 0 || b.workers > most {
		b.workers--
		return plan.Action{}, false
	}
	first := b.actions[0]
	b.actions = b.actions[1:]
	return first, true
}

// returned puts a Pod that has changed back into service, if its set's pass is writing. Otherwise
// the next pass does it.
func (r *Reconciler) returned(pod *corev1.Pod) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return
	}
	value, known := r.memories.Load(types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name})
	if !known {
		return
	}
	b := &value.(*memory).returns
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.snapshot == nil || b.set != owner.UID || b.acting.Has(pod.UID) {
		return
	}
	action, ok := r.Return(b.snapshot, r.pods.newest(owner.UID, pod), r.Clock.Now())
	if !ok {
		return
	}
	r.metrics.planned(&action)
	b.acting.Insert(pod.UID)
	b.actions = append(b.actions, action)
	if b.workers >= r.Width.Now() {
		return
	}
	b.workers++
	perform := b.perform
	b.waits = append(b.waits, r.Beside(func() {
		a, more := b.next(nil, r.Width.Now())
		for more {
			done := perform(a)
			a, more = b.next(&done, r.Width.Now())
		}
	}))
}

// inGoroutine does something beside everything else.
func inGoroutine(do func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	return func() { <-done }
}
