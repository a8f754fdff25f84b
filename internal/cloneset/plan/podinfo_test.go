// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// TestDigest: what the planner reads changes the digest; what it does not read does not.
func TestDigest(t *testing.T) {
	status := func(edit func(*corev1.ContainerStatus)) podOption {
		return func(p *corev1.Pod) { edit(&p.Status.ContainerStatuses[0]) }
	}
	matters := map[string]podOption{
		"label added":           label("x", "y"),
		"label changed":         label("app", "db"),
		"state":                 state(apps.StatePreparingUpdate),
		"state's time":          annotation(apps.AnnotationLifecycleTimestamp, "now"),
		"cost":                  annotation(corev1.PodDeletionCost, "7"),
		"record":                annotation(apps.AnnotationInPlaceUpdateState, "{}"),
		"grace":                 annotation(apps.AnnotationInPlaceUpdateGrace, "{}"),
		"finalizer":             finalizers("a/b"),
		"phase":                 phase(corev1.PodFailed),
		"node":                  on("n2"),
		"terminating":           terminating,
		"toleration":            tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists}),
		"not ready":             unready,
		"ready for less":        readyFor(time.Second),
		"restarts":              restarts(1),
		"in-place condition":    condition(apps.ConditionInPlaceUpdateReady, corev1.ConditionFalse, ""),
		"its message":           condition(apps.ConditionInPlaceUpdateReady, corev1.ConditionTrue, "web-r9"),
		"mark":                  condition(apps.ConditionPodReady, corev1.ConditionFalse, ""),
		"released by its owner": func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{UID: "u"}} },
	}
	idle := map[string]podOption{
		"another annotation": annotation("x", "y"),
		"another condition":  condition("Other", corev1.ConditionTrue, ""),
		"version":            func(p *corev1.Pod) { p.ResourceVersion = "2" },
		"managed fields":     func(p *corev1.Pod) { p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}} },
		"a status message":   func(p *corev1.Pod) { p.Status.Message = "m" },
		"container ID":       status(func(c *corev1.ContainerStatus) { c.ContainerID = "c9" }),
		"observed generation": func(p *corev1.Pod) {
			p.Status.ObservedGeneration++
		},
	}
	mattersInUpdate := map[string]podOption{
		"container ID":        idle["container ID"],
		"image ID":            status(func(c *corev1.ContainerStatus) { c.ImageID = "i9" }),
		"image":               status(func(c *corev1.ContainerStatus) { c.Image = "i9" }),
		"stopped":             status(func(c *corev1.ContainerStatus) { c.State.Running = nil }),
		"observed generation": idle["observed generation"],
		"sidecar": func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, corev1.ContainerStatus{Name: "s"})
		},
	}
	mattersAtItsEnd := map[string]podOption{ // it matters for the claims
		"state": matters["state"], "phase": matters["phase"], "released by its owner": matters["released by its owner"],
		"named for deletion": label(apps.LabelSpecifiedDelete, "true"),
	}
	idleAtItsEnd := map[string]podOption{
		"not ready": matters["not ready"], "restarts": matters["restarts"], "finalizer": matters["finalizer"],
		"in-place condition": matters["in-place condition"], "record": matters["record"],
	}
	compare := func(name string, before podOption, edit podOption, changes bool) {
		if got := Digest(pod("a", 1, before)) != Digest(pod("a", 1, before, edit)); got != changes {
			t.Errorf("%s: changes the digest = %v", name, got)
		}
	}
	nothing := func(*corev1.Pod) {}
	for name, edit := range matters {
		compare(name, nothing, edit, true)
	}
	for name, edit := range idle {
		compare(name, nothing, edit, false)
	}
	for name, edit := range mattersInUpdate {
		compare("updating: "+name, updating(2), edit, true)
	}
	for name, edit := range mattersAtItsEnd {
		compare("terminating: "+name, terminating, edit, true)
	}
	for name, edit := range idleAtItsEnd {
		compare("terminating: "+name, terminating, edit, false)
	}
}
