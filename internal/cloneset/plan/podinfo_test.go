// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestReadPods: what was read of a Pod counts only for that version of it, whichever other Pods
// came or went.
func TestReadPods(t *testing.T) {
	a, b, c, d := pod("a", 1), pod("b", 1), pod("c", 1), pod("d", 1)
	changed := b.DeepCopy()
	state(apps.StatePreparingDelete)(changed)
	before := ReadPods([]*corev1.Pod{a, b, d}, nil)
	for name, test := range map[string]struct {
		pods   []*corev1.Pod
		before []*PodInfo
		kept   int
	}{
		"nothing changed":     {[]*corev1.Pod{a, b, d}, before, 3},
		"nothing known":       {[]*corev1.Pod{a, b, d}, nil, 0},
		"one changed":         {[]*corev1.Pod{a, changed, d}, before, 2},
		"one gone":            {[]*corev1.Pod{a, d}, before, 2},
		"one new":             {[]*corev1.Pod{a, b, c, d}, before, 3},
		"new ones at the end": {[]*corev1.Pod{b, d, a, c}, before, 2},
		"all gone":            {nil, before, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, kept := ReadPods(test.pods, test.before), 0
			for i, r := range got {
				if want := newPodInfo(test.pods[i]); r.pod != test.pods[i] || r.State() != want.State() || r.Revision() != want.Revision() {
					t.Errorf("%s is read as %s in state %s", test.pods[i].Name, r.pod.Name, r.State())
				}
				kept += one(slices.Contains(before, r))
			}
			if len(got) != len(test.pods) || kept != test.kept {
				t.Errorf("%d Pods read, %d of them from before; want %d and %d", len(got), kept, len(test.pods), test.kept)
			}
		})
	}
}

// TestPodInfosOfOthers: a snapshot's PodInfos count for its own Pods only.
func TestPodInfosOfOthers(t *testing.T) {
	s := snap(2, with(pod("a", 1), pod("b", 1)))
	s.PodInfos = ReadPods([]*corev1.Pod{pod("a", 1, unready), s.Pods[1]}, nil)
	if got := tally(s); got.Ready != 2 {
		t.Errorf("%d Pods are ready, want 2", got.Ready)
	}
}
