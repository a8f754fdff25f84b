// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
)

// TestChangeIsWorkedOutOnce for all Pods of a revision.
func TestChangeIsWorkedOutOnce(t *testing.T) {
	p := newPass(snap("InPlaceIfPossible; r2", pod("a", 1), pod("b", 1)))
	first, err := p.change(p.pods[0])
	second, _ := p.change(p.pods[1])
	if err != nil || first != second {
		t.Errorf("two changes for one revision: %p %p %v", first, second, err)
	}
	p = newPass(snap("InPlaceIfPossible; r2 env", pod("a", 1)))
	var refusal *inplace.Refusal
	if _, err := p.change(p.pods[0]); !errors.As(err, &refusal) {
		t.Errorf("err = %v, want a refusal", err)
	}
}

// TestRemovedCondition: a condition that is put back names the revision of the update.
func TestRemovedCondition(t *testing.T) {
	s := snap("r2", pod("a", 1, "updating r2; withoutCondition"))
	if c := Make(s).Actions[0].Conditions[0]; c.Message != "web-r2" {
		t.Errorf("the condition names %q", c.Message)
	}
}

// TestGraceIsWhole: a condition records the second in which a drain began, and the grace
// period counts from the end of that second.
func TestGraceIsWhole(t *testing.T) {
	for _, test := range []struct {
		begun       time.Time
		grace, want time.Duration
	}{
		{now, 5 * time.Second, 6 * time.Second},
		{now.Add(time.Millisecond), 5 * time.Second, 6 * time.Second},
		{now.Add(999 * time.Millisecond), 5 * time.Second, 6 * time.Second},
		{now.Add(time.Second), 5 * time.Second, 7 * time.Second},
		{now, 0, 0},
	} {
		if got := graceEnd(test.begun, test.grace); !got.Equal(now.Add(test.want)) {
			t.Errorf("graceEnd(%v, %v) = %v, want %v", test.begun, test.grace, got, now.Add(test.want))
		}
	}
	slow := snap("InPlaceIfPossible; r2; grace 5s; drained a 2s", pod("a", 1, "out r2 9s"))
	quick := snap("InPlaceIfPossible; r2; grace 5s", pod("a", 1))
	quick.Now = now.Add(700 * time.Millisecond)
	for s, want := range map[*Snapshot]time.Duration{slow: 3 * time.Second, quick: 6 * time.Second} {
		if p := decide(t, s); !p.RequeueAt.Equal(now.Add(want)) || len(p.Actions) > one(s == quick) {
			t.Errorf("%v, again at %v, want in %v", describe(p), p.RequeueAt, want)
		}
	}
}

// TestUpdateOrder: it does not depend on the order in which the Pods are known.
func TestUpdateOrder(t *testing.T) {
	s := snap("r2; scatter app=db", pod("a", 1), pod("b", 1), pod("c", 1, "label app=db"), pod("d", 1, "label app=db"))
	for range 2 {
		var order []string
		for _, v := range s.orderForUpdate(newPass(s).pods) {
			order = append(order, v.pod.Name)
		}
		if want := []string{"c", "a", "b", "d"}; !slices.Equal(order, want) {
			t.Errorf("the order is %v, want %v", order, want)
		}
		slices.Reverse(s.Pods)
	}
}

// TestNewIDs: a new instance id is none that has claims.
func TestNewIDs(t *testing.T) {
	if p := Make(snap("replicas 2; claims x")); !p.Actions[1].Taken["x"] {
		t.Error("a new id may be one that has claims")
	}
}

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
	for _, strategy := range []string{"", "InPlaceIfPossible", "InPlaceOnly", "OnDelete"} {
		for _, paused := range []string{"", "; paused"} {
			for _, at := range everyState {
				if at == apps.StateUpdating || at == apps.StatePreparingDelete {
					continue // held by the update, and by the hook
				}
				s := snap("hooks all, marking; "+strategy+paused, pod("a", 1, "registered; marked; state "+string(at)))
				if p := decide(t, s); !lifted(p) {
					t.Errorf("%s%s: a Pod in %q keeps its mark: %v", strategy, paused, at, describe(p))
				}
			}
		}
	}
	// Someone else's mark is not ours to remove.
	if p := decide(t, snap("", pod("a", 1, `mark [{"userAgent":"ContainerRecreateRequest","key":"ns/x"}]`))); len(p.Actions) > 0 {
		t.Errorf("someone else's mark: %v", describe(p))
	}
}

// TestScaleInStaysEven: from 9 Pods in 3 zones to 3, over as many passes as the budget
// and the hook require, no zone ever has two Pods more than another.
func TestScaleInStaysEven(t *testing.T) {
	for name, about := range map[string]string{"one at a time": "starts 1", "all at once": "", "through a hook": "starts 2; hooks preDelete"} {
		t.Run(name, func(t *testing.T) {
			s := snap("replicas 3; spread "+zoneKey+"; "+about, placed("a1 a1 a1 b1 b2 b3 c1 c2 c2", "holds delete")...)
			for range 20 {
				for _, a := range decide(t, s).Actions {
					if a.Pod.Labels[apps.LabelLifecycleState] = string(a.To); a.Verb == Delete {
						s.Pods = slices.DeleteFunc(s.Pods, func(p *corev1.Pod) bool { return p == a.Pod })
					}
				}
				if counts := perZone(s); slices.Max(counts)-slices.Min(counts) > 1 {
					t.Fatalf("Pods in the zones: %v", counts)
				}
				for _, pod := range s.Pods {
					if apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) == apps.StatePreparingDelete {
						pod.Finalizers = nil // as its operator does
					}
				}
			}
			if counts := perZone(s); !slices.Equal(counts, []int{1, 1, 1}) {
				t.Errorf("Pods in the zones at the end: %v", counts)
			}
		})
	}
}

// perZone counts the Pods that stay.
func perZone(s *Snapshot) []int {
	counts := make([]int, 3)
	for _, pod := range s.Pods {
		if apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) != apps.StatePreparingDelete {
			counts[pod.Spec.NodeName[0]-'a']++
		}
	}
	return counts
}
