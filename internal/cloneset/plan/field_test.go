// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
)

// The tests in this file are failures that users of CloneSets have met, as far as a
// planner is involved.

var everyState = []apps.LifecycleState{
	"", apps.StateNormal, apps.StatePreparingNormal, apps.StatePreparingUpdate, apps.StateUpdating, apps.StateUpdated, apps.StatePreparingDelete,
}

// lifted reports whether a plan removes the mark of markPodNotReady.
func lifted(p Plan) bool {
	return slices.ContainsFunc(p.Actions, func(a Action) bool {
		return slices.ContainsFunc(a.Conditions, func(c Condition) bool {
			return c.Type == apps.ConditionPodReady && c.Status == corev1.ConditionTrue
		})
	})
}

// TestField_MarkPodNotReadyIsLiftedOnEveryPath: whichever way a Pod left a gate, its
// present state decides about its mark.
func TestField_MarkPodNotReadyIsLiftedOnEveryPath(t *testing.T) {
	marked := condition(apps.ConditionPodReady, corev1.ConditionFalse, `[{"userAgent":"Lifecycle","key":"preUpdateHook"}]`)
	for _, m := range []Method{Recreate, InPlaceIfPossible, InPlaceOnly, OnDelete} {
		for _, isPaused := range []bool{false, true} {
			for _, at := range everyState {
				if at == apps.StateUpdating || at == apps.StatePreparingDelete {
					continue // held by the update, and by the hook
				}
				s := snap(1, method(m), hooks(gates(true)), with(pod("a", 1, registered, state(at), marked)))
				s.Spec.Paused = isPaused
				if p := decide(t, s); !lifted(p) {
					t.Errorf("%s, paused %v: a Pod in %q keeps its mark: %v", m, isPaused, at, describe(p))
				}
			}
		}
	}
	// Someone else's mark is not ours to remove.
	s := snap(1, with(pod("a", 1, condition(apps.ConditionPodReady, corev1.ConditionFalse,
		`[{"userAgent":"ContainerRecreateRequest","key":"ns/x"}]`))))
	expect(t, s)
}

// TestField_CancelledDeletePassesPreNormalAgain: a Pod that returns from PreparingDelete
// is protected again, and is not Normal before preNormal allows it.
func TestField_CancelledDeletePassesPreNormalAgain(t *testing.T) {
	template := rev(1, func(template map[string]any) {
		labelsOf(template)["ready.example.com"] = "no"
	})
	h := lifecycle.Hooks{
		PreNormal:     lifecycle.Hook{Labels: map[string]string{"ready.example.com": "yes", "extra.example.com": "yes"}, Finalizers: []string{"shared/f", keyNormal}},
		InPlaceUpdate: lifecycle.Hook{Finalizers: []string{"shared/f", keyUpdate}},
		PreDelete:     lifecycle.Hook{Labels: map[string]string{"ready.example.com": "yes", "listed.example.com": "yes"}, Finalizers: []string{keyDelete, keyUpdate}, MarkNotReady: true},
	}
	s := snap(1, toRevision(template), hooks(h), with(pod("a", 1, state(apps.StatePreparingDelete), finalizers(keyNormal, "shared/f"),
		condition(apps.ConditionPodReady, corev1.ConditionFalse, `[{"userAgent":"Lifecycle","key":"preDeleteHook"}]`),
		label("ready.example.com", "yes"), label("extra.example.com", "yes"))))
	p := expect(t, s, "move a (ScaleInCancelled) to PreparingNormal KruisePodReady=True")
	a := p.Actions[0]
	if want := []string{keyUpdate, keyDelete}; !slices.Equal(a.AddFinalizers, want) {
		t.Errorf("added finalizers = %v, want %v", a.AddFinalizers, want)
	}
	if want := []string{"shared/f", keyNormal}; !slices.Equal(a.RemoveFinalizers, want) {
		t.Errorf("removed finalizers = %v, want those of preNormal %v", a.RemoveFinalizers, want)
	}
	no, yes := "no", "yes"
	for key, want := range map[string]*string{"ready.example.com": &no, "extra.example.com": nil, "listed.example.com": &yes} {
		got, ok := a.Labels[key]
		if !ok || (got == nil) != (want == nil) || (got != nil && *got != *want) {
			t.Errorf("label %s = %v, want %v", key, got, want)
		}
	}
}

// TestField_CurrentRevisionDoesNotAdvanceEarly: not before every Pod that should exist
// has the update revision.
func TestField_CurrentRevisionDoesNotAdvanceEarly(t *testing.T) {
	to := toRevision(rev(2))
	for _, test := range []struct {
		name string
		s    *Snapshot
		want bool
	}{
		{"all", snap(2, to, with(pods(2, "a", "b")...)), true},
		{"all, though not ready", snap(2, to, with(pod("a", 2, unready), pod("b", 2))), true},
		{"one old", snap(2, to, with(pod("a", 2), pod("b", 1))), false},
		{"one missing", snap(2, to, with(pod("a", 2))), false},
		{"surge", snap(2, to, with(pods(2, "a", "b", "c")...)), false},
		{"one terminating", snap(2, to, with(pod("a", 2), pod("b", 2, terminating))), false},
		{"no replicas", snap(0, to), true},
	} {
		if got := tally(test.s).RolledOut; got != test.want {
			t.Errorf("%s: RolledOut = %v", test.name, got)
		}
	}
}
