// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
)

// dice turns fuzzed bytes into choices; when they run out it always takes the first one.
type dice struct{ data []byte }

func (d *dice) roll(n int) int {
	if len(d.data) == 0 || n == 0 {
		return 0
	}
	value := int(d.data[0]) % n
	d.data = d.data[1:]
	return value
}

func (d *dice) flip() bool { return d.roll(2) == 1 }

func pick[T any](d *dice, choices ...T) T { return choices[d.roll(len(choices))] }

// anySnapshot builds a snapshot of anything that may occur in a cluster.
func anySnapshot(d *dice) *Snapshot {
	s := snap(d.roll(8))
	toRevision(pick(d, rev(1), rev(2), rev(2, newEnv), rev(2, onlyLabel), rev(3), rev(2, withCPU("200m")), rev(2, withBase(2))))(s)
	if d.flip() {
		s.Revisions["r2"] = rev(2)
	}
	if d.roll(8) == 7 {
		s.Revisions["r1"].Template = nil
	}
	spec := &s.Spec
	spec.Method = pick(d, Recreate, InPlaceIfPossible, InPlaceOnly, OnDelete)
	spec.Partition = Count{Value: d.roll(9), Percent: d.flip()}
	spec.MaxUnavailable = Count{Value: d.roll(9), Percent: false}
	spec.MaxSurge = Count{Value: d.roll(5)}
	spec.Paused, s.ExcludePreparingDelete = d.roll(5) == 4, d.roll(4) == 3
	s.Deletion = map[int]Deletion{14: LetGo, 15: Drain}[d.roll(16)]
	spec.Grace = pick(d, 0, time.Minute)
	spec.MinReady = pick(d, 0, time.Minute)
	spec.Hooks = pick(d, lifecycle.Hooks{}, gates(false), gates(true), preDelete())
	s.Starts = pick(d, 0, 1, 2, 32)
	if d.roll(4) == 3 {
		spec.ScaleMaxUnavailable = &Count{Value: d.roll(4)}
	}
	if d.roll(8) == 7 {
		refused(s)
	}
	for i := range d.roll(9) {
		name := fmt.Sprintf("p%d", i)
		with(anyPod(d, name))(s)
		if d.roll(6) == 5 {
			spec.PodsToDelete = append(spec.PodsToDelete, name)
		}
		if d.roll(8) == 7 {
			deferred(time.Minute, name)(s)
		}
	}
	anyClaims(d, s)
	if d.roll(3) == 2 {
		cordoned(pick(d, "n1", "n2"))(s)
	}
	return s
}

// anyClaims gives the set claims with Pods, without, and with the wrong labels.
func anyClaims(d *dice, s *Snapshot) {
	if d.flip() {
		templates("data", "log")(s)
	}
	s.Spec.DisableClaimReuse = d.roll(4) == 3
	if d.roll(8) == 7 {
		claimsRefused(s)
	}
	for i := range d.roll(5) {
		id := fmt.Sprintf("i%d", i)
		c := claim(pick(d, "data", "log", "other"), id)
		if d.roll(4) == 3 {
			going(c)
		}
		if d.roll(5) == 4 {
			c.Labels[apps.LabelInstanceID] = "i0"
		}
		withClaims(c)(s)
		if d.roll(6) == 5 {
			deletedInstance(id)(s)
		}
		if d.flip() {
			p := anyPod(d, "web-"+id)
			label(apps.LabelInstanceID, pick(d, id, id, "", "i0"))(p)
			mounting("data", id)(p)
			with(p)(s)
		}
	}
	slices.SortFunc(s.Pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
}

func anyPod(d *dice, name string) *corev1.Pod {
	p := pod(name, 1+d.roll(3))
	none := func(*corev1.Pod) {}
	pick(d, none, hasCPU("100m"), hasBase)(p)
	if len(p.Spec.Containers) > 1 && d.flip() {
		inBatch(p)
	} else {
		pick(d, none, none, resizing(false), resizing(true))(p)
	}
	if d.roll(3) == 2 {
		updating(1 + d.roll(3))(p)
	}
	if d.flip() {
		restarted(p)
	}
	for _, o := range []podOption{
		pick(d, none, unready, readyFor(time.Second), pending, fresh),
		pick(d, none, state(pick(d, append(everyState, "Nonsense")...))),
		pick(d, none, registered, finalizers(keyDelete), finalizers(keyUpdate), finalizers(keyNormal, "other/f")),
		pick(d, none, none, label(apps.LabelSpecifiedDelete, pick(d, "true", "false"))),
		pick(d, none, none, none, terminating, phase(corev1.PodFailed), phase(corev1.PodUnknown)),
		pick(d, none, none, out(1+d.roll(3), pick(d, time.Second, time.Hour))),
		pick(d, none, none, condition(apps.ConditionPodReady, corev1.ConditionFalse, pick(d, "", "[]", `[{"userAgent":"x"}]`))),
		pick(d, none, none, none, annotation(apps.AnnotationInPlaceUpdateState, pick(d, "{", "{}", "null"))),
		pick(d, none, none, annotation(corev1.PodDeletionCost, pick(d, "1", "-1", "x"))),
		pick(d, none, none, on("n2"), tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})),
		pick(d, none, none, label(apps.LabelRevision, pick(d, "", "r2", "gone"))),
	} {
		o(p)
	}
	return p
}

// check returns what a plan breaks, before it is executed, of what users are promised.
func check(s *Snapshot, p Plan) error {
	taken, made := 0, 0
	for _, a := range p.Actions {
		made += one(a.Verb == Create)
		if takesDown(a) {
			var v podState
			s.read(&v, newPodInfo(a.Pod))
			taken += one(v.available && v.active())
		}
	}
	if left := tally(s).Available - taken; taken > 0 && left < s.Spec.Replicas-s.Spec.maxUnavailable() {
		return fmt.Errorf("%d Pods would serve, %d shall: %v", left, s.Spec.Replicas-s.Spec.maxUnavailable(), describe(p))
	}
	if c := tally(s); made > 0 && c.Replicas+made > s.Spec.Replicas+s.Spec.maxSurge() && !s.ExcludePreparingDelete {
		return fmt.Errorf("%d Pods, and %d more: %v", c.Replicas, made, describe(p))
	}
	return nil
}

func takesDown(a Action) bool {
	switch a.Verb {
	case Delete:
		return true
	case Update:
		return a.Change.Drains()
	}
	return a.Reason == ReasonPrepareUpdate || a.Reason == ReasonStartInPlace || a.LeavesService()
}

// FuzzMake: no snapshot makes the planner panic, act twice on a Pod, bypass a hook,
// change the snapshot, or decide differently the second time.
func FuzzMake(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("usher"))
	for i := range 64 {
		seed := make([]byte, 200)
		for j := range seed {
			seed[j] = byte(i*31 + j*j*(i+7) + j>>3)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, again := anySnapshot(&dice{data}), anySnapshot(&dice{data})
		p := decide(t, s)
		if err := check(s, p); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(again.Pods, s.Pods); diff != "" {
			t.Errorf("the planner wrote to the snapshot: %s", diff)
		}
		if diff := cmp.Diff(describe(Make(again)), describe(p)); diff != "" {
			t.Errorf("the same snapshot, another plan: %s", diff)
		}
	})
}
