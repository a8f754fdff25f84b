// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/list"
)

// returning is a set of three Pods that return once they are bound to a node. A write to a Pod with a
// gate waits until the gate has an error or nil, which becomes its answer.
type returning struct {
	*Reconciler
	set   *apps.CloneSet
	pods  []*corev1.Pod
	gates map[string]chan error
	sent  chan string // the names of the Pods that are written
	c     client.Client
}

func returningSet(t *testing.T, gated ...int) *returning {
	r := &returning{set: web(), gates: map[string]chan error{}, sent: make(chan string, 10)}
	r.set.Spec.Replicas = new(int32(3))
	r.c = server(t, r.set)
	r.Reconciler, _ = reconcilerOn(interceptor.NewClient(r.c.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			object.SetUID(types.UID(object.GetName()))
			return c.Create(ctx, object, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if _, pod := object.(*corev1.Pod); pod && len(r.gates) > 0 {
				r.sent <- object.GetName()
				if err := <-r.gates[object.GetName()]; err != nil {
					return err
				}
			}
			return c.Patch(ctx, object, patch, options...)
		},
	}))
	_ = r.pass(t)
	r.pods = checktest.Must(r.ListPods(t.Context(), r.set.Namespace, string(r.set.UID)))(t)
	for i, pod := range r.pods {
		gate := make(chan error)
		if r.gates[pod.Name] = gate; !slices.Contains(gated, i) {
			close(gate)
		}
	}
	return r
}

func (r *returning) pass(t *testing.T) error {
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(r.set)})
	if err == nil && result.RequeueAfter == time.Millisecond {
		return errAgain{}
	}
	return err
}

// errAgain means that another pass is due at once.
type errAgain struct{}

func (errAgain) Error() string { return "another pass is due at once" }

func (r *returning) executor() *executor { return r.shared(keyOf(r.set)).executor }

func (r *returning) start(t *testing.T) (ended chan error) {
	ended = make(chan error)
	go func() { ended <- r.pass(t) }()
	return ended
}

// place binds Pods to a node, unless they have one.
func (r *returning) place(t *testing.T, pods ...*corev1.Pod) {
	for _, pod := range pods {
		if bound := read(t, r.c, pod); bound.Spec.NodeName == "" {
			bound.Spec.NodeName = "n1"
			checktest.NoError(t, r.c.Update(t.Context(), bound))
		}
	}
}

// bind binds Pods to a node, with an event for each.
func (r *returning) bind(t *testing.T, pods ...*corev1.Pod) {
	r.place(t, pods...)
	for _, pod := range pods {
		r.PodEvents().Update(t.Context(), event.UpdateEvent{ObjectOld: pod, ObjectNew: read(t, r.c, pod)}, &queued{})
	}
}

func (r *returning) state(t *testing.T, pod *corev1.Pod) string {
	return read(t, r.c, pod).Labels[apps.LabelLifecycleState]
}

// TestReturnsDuringPass: after a pass that acted, Pods return, once each, also while the next pass
// decides or waits for the answer to a write, except the Pods that this write changes. After a pass
// that did nothing, they wait for the next one.
func TestReturnsDuringPass(t *testing.T) {
	r := returningSet(t, 0, 2)
	r.place(t, r.pods[0])
	r.Plan = func(s *plan.Snapshot) plan.Plan {
		r.bind(t, r.pods[1]) // the pass has read it before
		return plan.Make(s)
	}
	ended := r.start(t)
	checktest.Same(t, "what is written first", sets.New(r.pods[0].Name, r.pods[1].Name), sets.New(receive(t, r.sent), receive(t, r.sent)))
	r.bind(t, r.pods...)
	checktest.Same(t, "what returns meanwhile", r.pods[2].Name, receive(t, r.sent))
	close(r.gates[r.pods[2].Name])
	r.gates[r.pods[0].Name] <- nil
	for err := <-ended; err != nil; err = r.pass(t) {
		checktest.Same(t, "the end of a pass", error(errAgain{}), err)
	}
	checktest.NoError(t, r.pass(t))
	for _, pod := range r.pods {
		checktest.Same(t, "the state of "+pod.Name, string(apps.StateNormal), r.state(t, pod))
	}
	checktest.Same(t, "more writes", 0, len(r.sent))
	change(t, r.c, r.pods[0], func(pod *corev1.Pod) { pod.Labels[apps.LabelLifecycleState] = string(apps.StatePreparingNormal) })
	r.offer(read(t, r.c, r.pods[0]))
	r.executor().Wait()
	checktest.Same(t, "writes after a pass that did nothing", 0, len(r.sent))
}

// TestActionOnReturned: an action that a pass skips because its Pod has come back is decided again at
// once.
func TestActionOnReturned(t *testing.T) {
	r := returningSet(t)
	r.bind(t, r.pods[0])
	checktest.Same(t, "what returns after the first pass", r.pods[0].Name, receive(t, r.sent))
	remove := plan.Plan{Actions: []plan.Action{{Verb: plan.Delete, Pod: r.pods[0]}}}
	r.Plan = func(*plan.Snapshot) plan.Plan { return remove }
	checktest.Same(t, "the end of the pass", error(errAgain{}), r.pass(t))
}

// TestLastReturnIsReported: a pass that does nothing but collect a return reports it, and does not
// leave that to the next pass. The return's events are over, so nothing else may cause one.
func TestLastReturnIsReported(t *testing.T) {
	r := returningSet(t)
	r.bind(t, r.pods[0])
	r.executor().Wait() // otherwise the pass may read the Pod as it was, and leave it to another pass
	checktest.Same(t, "when it is reported", reportEvery, checktest.Must(r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(r.set)}))(t).RequeueAfter)
}

// TestInvalidSetReturnsNobody: if a set has become invalid, no Pod of it is changed, not even by a
// return.
func TestInvalidSetReturnsNobody(t *testing.T) {
	r := returningSet(t)
	set := read(t, r.c, r.set)
	set.Spec.UpdateStrategy.Partition = (*apps.Count)(new(intstr.FromString("half")))
	checktest.NoError(t, r.c.Update(t.Context(), set))
	_ = r.pass(t)
	r.bind(t, r.pods[0])
	r.executor().Wait()
	checktest.Same(t, "writes", 0, len(r.sent))
}

// TestReturnSeenDuringItsAction: a Pod that an event shows during its action in a pass is considered
// when that action has ended, not only in the next pass. A Pod that is no longer selected is left
// alone.
func TestReturnSeenDuringItsAction(t *testing.T) {
	r := returningSet(t, 0, 1)
	r.place(t, r.pods[:2]...)
	ended := r.start(t)
	checktest.Same(t, "what is written", sets.New(r.pods[0].Name, r.pods[1].Name), sets.New(receive(t, r.sent), receive(t, r.sent)))
	r.bind(t, r.pods[0])
	checktest.NoError(t, r.c.Patch(t.Context(), r.pods[2].DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"other"}}}`))))
	r.bind(t, r.pods[2])
	r.gates[r.pods[0].Name] <- errors.New("refused")
	checktest.Same(t, "what is written before the pass ends", r.pods[0].Name, receive(t, r.sent))
	close(r.gates[r.pods[0].Name])
	close(r.gates[r.pods[1].Name])
	checktest.Says(t, "the refusal", <-ended, "refused")
	r.executor().Wait()
	checktest.Same(t, "the state", string(apps.StateNormal), r.state(t, r.pods[0]))
}

// TestReturnOutlastsPass: a pass does not wait for an async return. The next pass leaves the Pod alone,
// and waits for the return only if it has nothing else to do. The pass that collects a failure fails.
func TestReturnOutlastsPass(t *testing.T) {
	r := returningSet(t, 0, 1)
	r.place(t, r.pods[0])
	ended := r.start(t)
	checktest.Same(t, "what is written first", r.pods[0].Name, receive(t, r.sent))
	r.bind(t, r.pods[1])
	checktest.Same(t, "what returns meanwhile", r.pods[1].Name, receive(t, r.sent))
	r.gates[r.pods[0].Name] <- nil
	checktest.Same(t, "the end of the first pass", error(errAgain{}), <-ended)
	r.place(t, r.pods[2]) // only the pass sees it
	checktest.Same(t, "the end of the second pass", error(errAgain{}), r.pass(t))
	checktest.Same(t, "what it writes", r.pods[2].Name, receive(t, r.sent))
	checktest.Same(t, "more writes", 0, len(r.sent))
	ended = r.start(t)
	r.gates[r.pods[1].Name] <- errors.New("broken for good")
	close(r.gates[r.pods[1].Name])
	checktest.Says(t, "the end of the pass after a return that failed", <-ended, "broken for good")
	checktest.NoError(t, r.pass(t))
	checktest.Same(t, "the state of the Pod in the end", string(apps.StateNormal), r.state(t, r.pods[1]))
}

// TestRestOutlastsPass: a pass that another one follows waits for the first write of each action. The
// next pass leaves the Pod alone. A pass that does nothing else fails if the rest of the action fails.
func TestRestOutlastsPass(t *testing.T) {
	r, first := returningSet(t, 0), 0
	r.Plan = func(s *plan.Snapshot) plan.Plan {
		return plan.Plan{More: true, Actions: list.Map(s.Pods[:first], func(pod *corev1.Pod) plan.Action {
			return plan.Action{
				Verb: plan.Update, Pod: pod, Revision: s.Update, Change: &inplace.Change{Images: map[string]string{"main": "app:2"}},
				Conditions: []plan.Condition{{Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionFalse}},
			}
		})}
	}
	for first = 1; first <= 2; first++ {
		checktest.Same(t, "the end of a pass", error(errAgain{}), r.pass(t))
		checktest.Same(t, "what is left", r.pods[first-1].Name, receive(t, r.sent))
	}
	first = 0
	ended := r.start(t)
	r.gates[r.pods[0].Name] <- errors.New("broken for good")
	checktest.Says(t, "the end of the last pass", <-ended, "broken for good")
	checktest.Same(t, "more writes", 0, len(r.sent))
}

// TestInGoroutines: no more calls run at a time than the limit, which may change, allows.
func TestInGoroutines(t *testing.T) {
	var limit, doing atomic.Int32
	limit.Store(3)
	begun, end := make(chan string, 9), make(chan struct{})
	wait := inGoroutine(func() {
		inGoroutines(func() int { return int(limit.Load()) }, 9, func(int) {
			if n := doing.Add(1); n > limit.Load() {
				t.Errorf("%d are done at once, of at most %d", n, limit.Load())
			}
			begun <- "another"
			<-end
			doing.Add(-1)
		})
	})
	for range 3 {
		receive(t, begun)
	}
	limit.Store(1)
	close(end)
	wait()
	checktest.Same(t, "how many have begun since then", 6, len(begun))
}

// receive returns the next value of a channel, within a minute.
func receive(t *testing.T, from <-chan string) string {
	t.Helper()
	select {
	case name := <-from:
		return name
	case <-time.After(time.Minute):
		t.Fatal("nothing comes")
		return ""
	}
}
