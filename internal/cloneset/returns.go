// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/cloneset/async"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// This file is about Pods that come back into service outside passes. Putting a Pod back affects no other Pod
// and uses no budget, so it need not wait for the next pass, and no pass waits for it.

type (
	// task carries out an action, step by step.
	task = async.Task[plan.Action, outcome]
	// step is one step of a task.
	step = async.Step[outcome]
	// executor runs the tasks of a set.
	executor = async.Executor[plan.Action, outcome]
)

// newExecutor returns the Executor of a set.
func (r *Reconciler) newExecutor() *executor {
	return async.New[plan.Action](async.Config[outcome]{
		Width: func() int { return r.Width.Now() },
		Each:  func(limit func() int, times int, do func(int)) { r.Each(limit, times, do) },
		Start: func(do func()) (wait func()) { return r.Background(do) },
		Again: r.offer,
	})
}

// offer shows a Pod that has changed to the Executor of its set: the Pod may return outside passes. Otherwise
// the next pass decides.
func (r *Reconciler) offer(pod *corev1.Pod) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name}
	if value, known := r.states.Load(key); known {
		value.(*setState).shared.executor.Offer(pod)
	}
}

// returner returns the function that decides, from this pass to the next one, whether a Pod returns to
// service. It returns the first step of that; nil if the Pod does not return.
func (r *Reconciler) returner(ctx context.Context, before *observation) func(*corev1.Pod) step {
	set := before.set
	selector, _ := selectorOf(set) // unreadable only if the set is being deleted: then no Pod returns
	isOwn := func(pod *corev1.Pod) bool {
		owner := metav1.GetControllerOfNoCopy(pod)
		return owner != nil && owner.UID == set.UID
	}
	return func(pod *corev1.Pod) step {
		if !isOwn(pod) {
			return nil
		}
		pod = r.pods.Newest(set.UID, pod)
		action, ok := r.Return(before.snapshot, pod, r.Clock.Now())
		// If the Pod is no longer the set's, a pass has released it, or the next one will.
		if !ok || !isOwn(pod) || !selector.Matches(labels.Set(pod.Labels)) {
			return nil
		}
		r.metrics.planned(&action)
		return r.stepOf(ctx, set, action)
	}
}

// tasksOf returns the tasks that carry out a plan's actions.
func (r *Reconciler) tasksOf(ctx context.Context, before *observation, actions []plan.Action) []*task {
	tasks := make([]*task, len(actions))
	for i, a := range actions {
		tasks[i] = &task{Action: a, Pod: a.Pod, Step: r.stepOf(ctx, before.set, a)}
	}
	return tasks
}

// inGoroutine calls do in a goroutine.
func inGoroutine(do func()) (wait func()) {
	var all sync.WaitGroup
	all.Go(do)
	return all.Wait
}

// inGoroutines calls do for 0 to times-1, each in a goroutine, at most limit() at a time.
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
