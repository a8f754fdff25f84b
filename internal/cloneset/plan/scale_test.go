// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// pods makes serving Pods of one revision.
func pods(n int, names ...string) []*corev1.Pod {
	var out []*corev1.Pod
	for _, name := range names {
		out = append(out, pod(name, n))
	}
	return out
}

const (
	create1 = "create a new Pod (ScaleOut) revision web-r1"
	create2 = "create a new Pod (ScaleOut) revision web-r2"
)

func TestScaleOut(t *testing.T) {
	limit := func(c Count) option { return func(s *Snapshot) { s.Spec.ScaleMaxUnavailable = &c } }
	minReady := func(s *Snapshot) { s.Spec.MinReady = time.Minute }
	for _, test := range []struct {
		name    string
		s       *Snapshot
		creates int
		limited int
	}{
		{"from nothing", snap(3), 3, 0},
		{"some are missing", snap(3, with(pods(1, "a")...)), 2, 0},
		{"none are missing", snap(1, with(pods(1, "a")...)), 0, 0},
		{"terminating and ended Pods hold no place", snap(2, with(pod("a", 1, terminating), pod("b", 1, phase(corev1.PodFailed)))), 2, 0},
		{"maxUnavailable nil is no bound", snap(100), 100, 0},
		{"maxUnavailable", snap(10, limit(Count{Value: 2})), 2, 8},
		{"maxUnavailable rounds up", snap(9, limit(percent(12))), 2, 7},
		{"maxUnavailable less those unavailable", snap(10, limit(Count{Value: 3}), with(pod("a", 1), pod("b", 1, fresh), pod("c", 1, unready))), 1, 6},
		{"maxUnavailable used up", snap(10, limit(Count{Value: 1}), with(pod("a", 1, unready))), 0, 9},
		{"minReadySeconds counts", snap(10, limit(Count{Value: 1}), minReady, with(pod("a", 1, readyFor(59*time.Second)))), 0, 9},
		{"minReadySeconds over", snap(10, limit(Count{Value: 1}), minReady, with(pod("a", 1, readyFor(time.Minute)))), 1, 8},
		{"PreparingDelete holds a place", snap(2, with(pod("a", 1), pod("b", 1, state(apps.StatePreparingDelete), label(apps.LabelSpecifiedDelete, "true"), finalizers(keyDelete))), hooks(preDelete())), 0, 0},
		{"starts bound a pass", snap(9, starts(4)), 4, 0},
		{"refused template, nothing else to make", snap(3, refused), 0, 0},
		{"a set that is being deleted", snap(3, func(s *Snapshot) { s.Deleting = true }), 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := decide(t, test.s)
			if got := count(p, func(a Action) bool { return a.Verb == Create }); got != test.creates || p.ScaleUpLimited != test.limited {
				t.Errorf("creates %d, limited %d; want %d, %d", got, p.ScaleUpLimited, test.creates, test.limited)
			}
		})
	}
	if p := Make(snap(9, starts(4))); !p.More {
		t.Error("a pass that stopped for its starts asks for no other one")
	}
	expectRequeue(t, Make(snap(10, limit(Count{Value: 1}), minReady, with(pod("a", 1, readyFor(50*time.Second))))), 10*time.Second)
}

// TestRevisionOfNewPods: those that the partition keeps at the old revision come first.
func TestRevisionOfNewPods(t *testing.T) {
	to := toRevision(rev(2))
	expect(t, snap(5, to, partition(2)), create1, create1, create2, create2, create2)
	expect(t, snap(4, to, partition(2), with(pod("a", 1), pod("b", 2))), create1, create2)
	expect(t, snap(4, to, partition(2), with(pod("a", 1), pod("b", 1), pod("c", 2))), create2)
	// A named old Pod does not count: its replacement is an old one too.
	expect(t, snap(4, to, partition(2), maxSurge(1), maxUnavailable(0), named("a"), with(pod("a", 1), pod("b", 1), pod("c", 2), pod("d", 2))), create1)
	// The template is refused, but the previous revision is not.
	expect(t, snap(3, to, refused, with(pods(1, "a", "b")...)), create1)
}

func TestScaleIn(t *testing.T) {
	del := func(name string) string { return "delete " + name + " (ScaleIn)" }
	expectEach(t, []planCase{
		{"surplus", snap(1, with(pods(1, "a", "b", "c")...)), []string{del("a"), del("b")}},
		{"to nothing", snap(0, with(pods(1, "a", "b")...)), []string{del("a"), del("b")}},
		{"a hook holds", snap(1, hooks(preDelete()), with(pod("a", 1, finalizers(keyDelete)), pod("b", 1))),
			[]string{"move a (ScaleIn) to PreparingDelete"}},
		{"one is leaving already", snap(1, hooks(preDelete()), with(pod("a", 1, state(apps.StatePreparingDelete), finalizers(keyDelete)), pod("b", 1))), nil},
		{"a leaving Pod whose conditions are put right still counts as leaving",
			snap(1, hooks(gates(true)), with(pod("a", 1, state(apps.StatePreparingDelete), registered), pod("b", 1, registered))),
			[]string{"move a (Conditions) KruisePodReady=False"}},
		{"ready Pods only as the budget allows", snap(4, maxUnavailable(1), with(pod("a", 1), pod("b", 1), pod("c", 1), pod("d", 1, fresh), pod("e", 1, fresh))),
			[]string{"move e (Conditions) InPlaceUpdateReady=True KruisePodReady=True", del("d")}},
		{"not while a named Pod waits", snap(3, maxUnavailable(0), maxSurge(1), named("d"), with(pods(1, "a", "b", "c")...), with(pod("d", 1, unready), pod("e", 1, unready))),
			[]string{"delete d (SpecifiedDelete)", del("e")}},
		{"not while a named Pod waits for its budget", snap(3, maxUnavailable(0), named("d"), with(pods(1, "a", "b", "d")...), with(pod("e", 1, unready))), nil},
		{"a Pod that has another action now is not spared", snap(1, with(pod("a", 1), pod("b", 1, state(apps.StateUpdated), unready))),
			[]string{"delete b (ScaleIn)"}},
	})
}

// TestDeleteBudget: ready Pods are removed only as far as maxUnavailable and the surplus
// allow, with other unavailable Pods counted.
func TestDeleteBudget(t *testing.T) {
	for _, test := range []struct {
		replicas, maxUnavailable, ready, broken, want int
	}{
		{5, 1, 5, 0, 1},
		{5, 2, 5, 0, 2},
		{5, 0, 6, 0, 1}, // the surplus is free
		{5, 1, 4, 1, 0},
		{5, 2, 4, 1, 1},
		{3, 1, 5, 0, 3},
		{3, 1, 4, 1, 2},
		{5, 5, 5, 0, 5},
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			s := snap(test.replicas, maxUnavailable(test.maxUnavailable))
			for i := range test.ready {
				with(pod(fmt.Sprintf("r%d", i), 1, label(apps.LabelSpecifiedDelete, "true")))(s)
			}
			for i := range test.broken {
				with(pod(fmt.Sprintf("x%d", i), 1, unready))(s)
			}
			if got := count(decide(t, s), func(a Action) bool { return a.Reason == ReasonSpecified }); got != test.want {
				t.Errorf("%d named Pods go, want %d", got, test.want)
			}
		})
	}
}

// TestVictimOrder: each Pod is removed before the next one, by one criterion each.
func TestVictimOrder(t *testing.T) {
	for _, test := range []struct {
		name         string
		first, later *corev1.Pod
	}{
		{"unassigned before assigned", pod("b", 1, pending), pod("a", 1, phase(corev1.PodPending), unready)},
		{"Pending before Unknown", pod("b", 1, phase(corev1.PodPending), unready), pod("a", 1, phase(corev1.PodUnknown), unready)},
		{"Unknown before Running", pod("b", 1, phase(corev1.PodUnknown), unready), pod("a", 1, unready)},
		{"not available before available", pod("b", 1, readyFor(0)), pod("a", 1, readyFor(time.Hour))},
		{"not available though ready", pod("b", 1, state(apps.StatePreparingNormal)), pod("a", 1)},
		{"not ready before ready", pod("b", 1, unready), pod("a", 1, readyFor(0))},
		{"lower cost first", pod("b", 1, annotation(corev1.PodDeletionCost, "-5")), pod("a", 1)},
		{"cost defaults to 0", pod("b", 1), pod("a", 1, annotation(corev1.PodDeletionCost, "1"))},
		{"an unreadable cost is 0", pod("b", 1, annotation(corev1.PodDeletionCost, "dear")), pod("a", 1, annotation(corev1.PodDeletionCost, "1"))},
		{"cost before spread", pod("b", 1, on("n2"), annotation(corev1.PodDeletionCost, "-1")), pod("a", 1)},
		{"ready for a shorter time", pod("b", 1, readyFor(2*time.Minute)), pod("a", 1, readyFor(3*time.Minute))},
		{"more restarts", pod("b", 1, restarts(2)), pod("a", 1, restarts(1))},
		{"newer", pod("b", 1, created(time.Hour)), pod("a", 1)},
		{"name", pod("a", 1), pod("b", 1)},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := snap(1, with(test.later, test.first), maxUnavailable(1), func(s *Snapshot) { s.Spec.MinReady = time.Minute })
			states := newPass(s)
			got := states.victims(1)
			if len(got) != 1 || got[0].pod.Name != test.first.Name {
				t.Errorf("victim = %v, want %s", got, test.first.Name)
			}
		})
	}
}

// TestSpread: where most Pods share a node, one is missed least.
func TestSpread(t *testing.T) {
	s := snap(3, with(pod("a", 1, on("n1")), pod("b", 1, on("n2")), pod("c", 1, on("n2")), pod("d", 1, on("n3"))))
	expect(t, s, "delete b (ScaleIn)")
}

// TestOldSurplusGoesFirst: Pods that the partition does not keep are removed before new
// Pods, and new Pods before those that it does keep.
func TestOldSurplusGoesFirst(t *testing.T) {
	all := with(append(pods(1, "o1", "o2", "o3"), pods(2, "n1", "n2")...)...)
	names := func(replicas, keep int) []string {
		var out []string
		for _, v := range newPass(snap(replicas, toRevision(rev(2)), partition(keep), all)).victims(5 - replicas) {
			out = append(out, v.pod.Name)
		}
		return out
	}
	for _, test := range []struct {
		replicas, partition int
		want                []string
	}{
		{3, 0, []string{"o1", "o2"}},
		{1, 0, []string{"o1", "o2", "o3", "n1"}},
		{3, 2, []string{"o1", "n1"}},
		{2, 2, []string{"o1", "n1", "n2"}},
		{1, 3, []string{"o1", "o2", "n1", "n2"}}, // the partition is 1 of 1
	} {
		if got := names(test.replicas, test.partition); !slices.Equal(got, test.want) {
			t.Errorf("to %d with partition %d: %v go, want %v", test.replicas, test.partition, got, test.want)
		}
	}
}

// TestNamedPods: podsToDelete and the label request the same.
func TestNamedPods(t *testing.T) {
	marked := label(apps.LabelSpecifiedDelete, "true")
	goes := "delete b (SpecifiedDelete)"
	expectEach(t, []planCase{
		{"the replacement comes", snap(3, named("b"), with(pod("a", 1), pod("b", 1, terminating), pod("c", 1))), []string{create1}},
		{"with fewer replicas it is the victim", snap(2, named("b"), with(pods(1, "a", "b", "c")...)), []string{goes}},
		{"within maxUnavailable", snap(3, maxUnavailable(1), named("a", "b"), with(pods(1, "a", "b", "c")...)), []string{"delete a (SpecifiedDelete)"}},
		{"surge only for what maxUnavailable does not cover", snap(3, maxUnavailable(1), maxSurge(1), named("a", "b"), with(pods(1, "a", "b", "c")...)),
			[]string{create1, "delete a (SpecifiedDelete)"}},
		{"podsToDelete", snap(3, named("b", "gone", "b"), with(pods(1, "a", "b", "c")...)), []string{goes}},
		{"label", snap(3, with(pod("a", 1), pod("b", 1, marked), pod("c", 1))), []string{goes}},
	})
	t.Run("with surge the replacement comes first", func(t *testing.T) {
		s := snap(2, maxUnavailable(0), maxSurge(1), named("b"), with(pods(1, "a", "b")...))
		expect(t, s, create1)
		s.Pods = append(s.Pods, pod("c", 1, fresh))
		expect(t, s, "move c (Conditions) InPlaceUpdateReady=True KruisePodReady=True")
		s.Pods[2] = pod("c", 1)
		expect(t, s, goes)
	})
	t.Run("through the hook", func(t *testing.T) {
		s := snap(3, named("b"), hooks(preDelete()), with(pod("a", 1), pod("b", 1, finalizers(keyDelete)), pod("c", 1)))
		p := expect(t, s, "move b (SpecifiedDelete) to PreparingDelete")
		if got := p.Actions[0].Labels[apps.LabelSpecifiedDelete]; got == nil || *got != "true" {
			t.Error("the Pod is not marked, so a change of replicas could bring it back")
		}
		s.Pods[1] = pod("b", 1, finalizers(keyDelete), state(apps.StatePreparingDelete))
		expect(t, s)
		if b := waiting(s); len(b) != 1 || b[0].Pod != "b" || b[0].Gate != "preDelete" || !slices.Equal(b[0].Keys, []string{keyDelete}) {
			t.Errorf("blocked = %v", b)
		}
		s.Pods[1] = pod("b", 1, state(apps.StatePreparingDelete))
		expect(t, s, "delete b (PreDeleteReleased)")
	})
}

// TestPreparingDeleteCounts: with or without the label on the set.
func TestPreparingDeleteCounts(t *testing.T) {
	leaving := func(options ...podOption) *corev1.Pod {
		return pod("b", 1, append(options, finalizers(keyDelete), state(apps.StatePreparingDelete))...)
	}
	hooked := hooks(preDelete())
	specified := label(apps.LabelSpecifiedDelete, "true")
	restored := "move b (ScaleInCancelled) to PreparingNormal"
	expectEach(t, []planCase{
		{"counted, not needed", snap(1, hooked, with(pod("a", 1), leaving())), nil},
		{"counted, needed again", snap(2, hooked, with(pod("a", 1), leaving())), []string{restored}},
		{"counted, specified: not replaced yet", snap(2, hooked, with(pod("a", 1), leaving(specified))), nil},
		{"counted, specified and more wanted", snap(3, hooked, with(pod("a", 1), leaving(specified))), []string{create1}},
		{"excluded, not needed", snap(1, hooked, excludePreparing, with(pod("a", 1), leaving())), nil},
		{"excluded, needed again", snap(2, hooked, excludePreparing, with(pod("a", 1), leaving())), []string{restored}},
		{"excluded, specified: replaced at once", snap(2, hooked, excludePreparing, with(pod("a", 1), leaving(specified))), []string{create1}},
		{"excluded, its surplus costs nobody else", snap(1, hooked, excludePreparing, with(pod("a", 1), leaving())), nil},
		{"named after the fact: not restored", snap(2, hooked, named("b"), with(pod("a", 1), leaving())), nil},
	})
}

// TestOrderOfAPass: Pods whose removal was cancelled return before anything is created,
// and nothing is scaled in while a named Pod waits.
func TestOrderOfAPass(t *testing.T) {
	s := snap(4, hooks(preDelete()), maxUnavailable(1), named("d"), with(
		pod("a", 1),
		pod("b", 1, state(apps.StatePreparingDelete), finalizers(keyDelete)),
		pod("c", 1, state(apps.StatePreparingDelete), label(apps.LabelSpecifiedDelete, "true")),
		pod("d", 1, unready),
	))
	// b returns, c holds a place until it is gone, so nothing is created yet.
	expect(t, s, "move b (ScaleInCancelled) to PreparingNormal", "delete c (PreDeleteReleased)")
}

// TestEndedPods: failed and evicted Pods are deleted and replaced, and keep their hook.
func TestEndedPods(t *testing.T) {
	s := snap(3, hooks(preDelete()), with(
		pod("a", 1, phase(corev1.PodFailed)),
		pod("b", 1, phase(corev1.PodSucceeded), finalizers(keyDelete)),
		pod("c", 1, phase(corev1.PodFailed), finalizers(keyDelete), state(apps.StatePreparingDelete)),
	))
	expect(t, s, "move b (PodEnded) to PreparingDelete", create1, create1, create1, "delete a (PodEnded)")
	if b := waiting(s); len(b) != 1 || b[0].Pod != "c" {
		t.Errorf("blocked = %v", b)
	}
	expect(t, snap(1, paused, with(pod("a", 1, phase(corev1.PodFailed)))), create1, "delete a (PodEnded)")
}

// TestRestoredCountsAsUnderWay: a restored Pod may have changed, and be deleted all the
// same; until it is back, no other Pod follows in its place.
func TestRestoredCountsAsUnderWay(t *testing.T) {
	two := func(first podOption) *Snapshot {
		return snap(2, method(InPlaceIfPossible), maxUnavailable(1), toRevision(rev(2)), hooks(preDelete()),
			with(pod("a", 1, first, finalizers(keyDelete)), pod("b", 1, unready, finalizers(keyDelete))))
	}
	expect(t, two(state(apps.StatePreparingDelete)), "move a (ScaleInCancelled) to PreparingNormal")
	expect(t, two(state(apps.StatePreparingNormal)), "move a (Scheduled) to Normal",
		"update b (InPlaceUpdate) to Updating InPlaceUpdateReady=False revision web-r2")
}
