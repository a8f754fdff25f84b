// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestReadPods: what was read of a Pod counts only for that version of it, whichever other Pods
// came or went.
func TestReadPods(t *testing.T) {
	a, b, c, d := pod("a", 1), pod("b", 1), pod("c", 1), pod("d", 1)
	changed := said(podWords, b.DeepCopy(), "state PreparingDelete")
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
	s := snap("", pod("a", 1), pod("b", 1))
	s.PodInfos = ReadPods([]*corev1.Pod{pod("a", 1, "unready"), s.Pods[1]}, nil)
	if got := tally(s); got.Ready != 2 {
		t.Errorf("%d Pods are ready, want 2", got.Ready)
	}
}

// TestDigest: what the planner reads of a Pod, or of its claims, changes the digest; what it
// does not read then does not. Nor do the reasons that a kubelet alternates between.
func TestDigest(t *testing.T) {
	for _, test := range []struct {
		when          string
		matters, idle []string
	}{
		{"",
			[]string{"label x=y", "label app=db", "state PreparingUpdate", "entered 0s", "cost 7", "record {}", "graceRecord {}", "finalizer a/b", "failed",
				"on n2", "terminating", "tolerates", "unready", "ready 1s", "restarts 1", "notInService", "inService web-r9", "mark", "is {metadata: {ownerReferences: [{uid: u}]}}"},
			[]string{"is {metadata: {annotations: {x: y}}}", "condition Other", `is {metadata: {resourceVersion: "2", managedFields: [{manager: m}]}}`,
				"is {status: {message: m, observedGeneration: 2}}", "container {containerID: c9}"}},
		{"updating r2",
			[]string{"container {containerID: c9}", "container {imageID: i9}", "container {image: i9}", "container {state: {running: null}}",
				"is {status: {observedGeneration: 2}}", "is {status: {initContainerStatuses: [{name: s}]}}"}, nil},
		{"terminating", // it matters for the claims
			[]string{"state PreparingUpdate", "failed", "is {metadata: {ownerReferences: [{uid: u}]}}", "specified"},
			[]string{"unready", "restarts 1", "finalizer a/b", "notInService", "record {}"}},
		{"cpu 100m; resizing written",
			[]string{"container {resources: {requests: {cpu: 200m}}}", "container {resources: null}", "container {allocatedResources: {cpu: 200m}}",
				"condition PodResizePending", "container {state: {waiting: {reason: CrashLoopBackOff}}}"}, nil},
		{"waits ErrImagePull", []string{"waits ContainerCreating"}, []string{"waits ImagePullBackOff"}},
		{"updating r2; seen; waits ErrImagePull", []string{"waits ContainerCreating"}, []string{"waits ImagePullBackOff"}},
		{"waits RunContainerError", nil, []string{"waits CrashLoopBackOff"}},
		{"updating r2; seen; waits RunContainerError", nil, []string{"waits CrashLoopBackOff"}},
		{"waits CrashLoopBackOff", nil, []string{"runsAgain c0 1", "ended c0 1"}},
	} {
		for changes, edits := range map[bool][]string{true: test.matters, false: test.idle} {
			for _, edit := range edits {
				if got := Digest(pod("a", 1, test.when)) != Digest(pod("a", 1, test.when, edit)); got != changes {
					t.Errorf("%s, then %s: changes the digest = %v", test.when, edit, got)
				}
			}
		}
	}
}
