// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
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
