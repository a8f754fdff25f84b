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
