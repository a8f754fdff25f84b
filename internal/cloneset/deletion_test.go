// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

const drainKey = "example.com/drain"

// hookedSet is a set with a preDelete hook.
func hookedSet(finalizers ...string) *apps.CloneSet {
	set := web()
	set.Spec.Replicas, set.Finalizers = new(int32), finalizers
	set.Spec.Lifecycle = &apps.Lifecycle{PreDelete: &apps.LifecycleHook{FinalizersHandler: []string{drainKey}}}
	return set
}

// held gives a Pod the hook's finalizer.
func held(pod *corev1.Pod) { pod.Finalizers = []string{drainKey} }

// passes makes passes over a set until one has nothing more to do at once.
func passes(t *testing.T, r *Reconciler, set *apps.CloneSet) {
	t.Helper()
	for range 10 {
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf(set)})
		if err != nil {
			t.Fatal(err)
		}
		if result.RequeueAfter == 0 || result.RequeueAfter >= longWait {
			return
		}
	}
	t.Fatal("ten passes, and still something to do")
}

// TestFinalizer: a set has the finalizer exactly while it has the hook.
func TestFinalizer(t *testing.T) {
	const other = "example.com/other"
	set := hookedSet(other)
	c := server(t, set)
	r, _ := reconcilerOn(c)
	passes(t, r, set)
	if got := read(t, c, set).Finalizers; !slices.Equal(got, []string{other, apps.FinalizerPreDelete}) {
		t.Fatalf("with the hook: %v", got)
	}
	set = read(t, c, set)
	set.Spec.Lifecycle = nil
	if err := c.Update(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	passes(t, r, set)
	if got := read(t, c, set).Finalizers; !slices.Equal(got, []string{other}) {
		t.Errorf("without the hook: %v", got)
	}
}

// TestDeletedSet: a set that is deleted sends its Pods to the gate and goes when they have
// passed it, whatever is wrong with its spec, and does nothing else. Nobody waits for Pods
// that are orphaned, or whose hook is gone.
func TestDeletedSet(t *testing.T) {
	broken := func(set *apps.CloneSet) {
		set.Spec.UpdateStrategy.Partition = &apps.Count{Type: 1, StrVal: "some"}
		set.Spec.Selector.MatchExpressions = []apps.LabelSelectorRequirement{{Key: "app", Operator: "Near"}}
		set.Spec.Template = apps.PodTemplate{}
	}
	for name, test := range map[string]struct {
		change func(*apps.CloneSet)
		drains bool
		held   []string
	}{
		"in background":                     {change: func(*apps.CloneSet) {}, drains: true, held: []string{apps.FinalizerPreDelete}},
		"in background, with a broken spec": {change: broken, drains: true, held: []string{apps.FinalizerPreDelete}},
		"in foreground": {
			change: func(set *apps.CloneSet) {
				set.Finalizers = append(set.Finalizers, metav1.FinalizerDeleteDependents)
			},
			drains: true, held: []string{metav1.FinalizerDeleteDependents},
		},
		"without its Pods": {
			change: func(set *apps.CloneSet) {
				set.Finalizers = append(set.Finalizers, metav1.FinalizerOrphanDependents)
			},
			held: []string{metav1.FinalizerOrphanDependents},
		},
		"the hook is removed": {change: func(set *apps.CloneSet) { set.Spec.Lifecycle = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			set := hookedSet(apps.FinalizerPreDelete)
			set.DeletionTimestamp, set.Spec.Replicas = deletedNow(), new(int32(9))
			test.change(set)
			pod, orphan := podOf(set, "web-a", held), podOf(nil, "web-b")
			c := server(t, set, pod, orphan)
			r, _ := reconcilerOn(c)
			r.memory(keyOf(set)).stale = true // it asks the API server for its Pods, too
			passes(t, r, set)
			heldBy(t, c, set, test.held)
			if drains := read(t, c, pod).Labels[apps.LabelLifecycleState] == string(apps.StatePreparingDelete); drains != test.drains {
				t.Errorf("the Pod is at its gate: %t", drains)
			}
			var pods corev1.PodList
			if err := c.List(t.Context(), &pods); err != nil || len(pods.Items) != 2 || metav1.GetControllerOf(read(t, c, orphan)) != nil {
				t.Errorf("%d Pods, or an adopted one: %v", len(pods.Items), err)
			}
			if test.drains {
				change(t, c, pod, func(pod *corev1.Pod) { pod.Finalizers = nil })
				passes(t, r, set)
				heldBy(t, c, set, slices.DeleteFunc(test.held, func(f string) bool { return f == apps.FinalizerPreDelete }))
			}
		})
	}
}

// heldBy checks what holds a deleted set, and that one that drains its Pods says so.
func heldBy(t *testing.T, c client.Client, set *apps.CloneSet, want []string) {
	t.Helper()
	if !exists(t, c, set) {
		if len(want) > 0 {
			t.Errorf("the set is gone, want %q to hold it", want)
		}
		return
	}
	live := read(t, c, set)
	if !slices.Equal(live.Finalizers, want) {
		t.Errorf("%q hold the set, want %q", live.Finalizers, want)
	}
	if slices.Contains(want, apps.FinalizerPreDelete) && !holdsFinding(&live.Status, apps.ConditionBlocked, findBlocked([]plan.Blocked{{
		Pod: "web-a", State: apps.StatePreparingDelete, Gate: "preDelete", Keys: []string{drainKey}, Since: now, SetDeleted: true}})) {
		t.Errorf("nobody knows what it waits for: %+v", live.Status.Conditions)
	}
}

// change changes a Pod.
func change(t *testing.T, c client.Client, pod *corev1.Pod, edit func(*corev1.Pod)) {
	t.Helper()
	live := read(t, c, pod)
	edit(live)
	if err := c.Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
}

// TestUnseenPodOfADeletedSet: a set does not go while it has a Pod that only the API server
// knows.
func TestUnseenPodOfADeletedSet(t *testing.T) {
	set := hookedSet(apps.FinalizerPreDelete)
	set.DeletionTimestamp = deletedNow()
	pod := podOf(set, "web-a", held)
	live := server(t, set, pod)
	r, _ := reconcilerOn(live)
	r.ListPods = byClient(server(t))
	passes(t, r, set)
	if got := read(t, live, pod).Labels[apps.LabelLifecycleState]; got != string(apps.StatePreparingDelete) || !exists(t, live, set) {
		t.Errorf("the Pod is in %q, and the set exists: %t", got, exists(t, live, set))
	}
}
