// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/list"
)

// TestChangeIsWorkedOutOnce: the change is computed once for all Pods of a revision.
func TestChangeIsWorkedOutOnce(t *testing.T) {
	p := newPass(snap("InPlaceIfPossible; r2", pod("a", 1), pod("b", 1)))
	first, err := p.change(p.pods[0])
	second, _ := p.change(p.pods[1])
	if err != nil || first != second {
		t.Errorf("two changes for one revision: %p %p %v", first, second, err)
	}
}

// TestRemovedCondition: a condition that is put back names the revision of the update.
func TestRemovedCondition(t *testing.T) {
	s := snap("r2", pod("a", 1, "updating r2; withoutCondition"))
	checktest.Same(t, "what the condition names", "web-r2", Make(s).Actions[0].Conditions[0].Message)
}

// TestReturns: which Pods return while a pass over their set is writing.
func TestReturns(t *testing.T) {
	for _, test := range []struct {
		set, pod string
		want     bool
	}{
		{"r2", "updating r2; restarted", true},
		{"r2", "updating r2", false}, // the kubelet is not done
		{"r2; hooks all", "updating r2; restarted; registered", true},
		{"r2; hooks all", "updating r2; restarted", false}, // its hook has to take hold first
		{"r2; hooks all", "updating r2; state Updated; registered", true},
		{"r2", "updating r2; restarted; cpu 100m; resizing", false}, // there is more to change
		{"r3", "updating r2; restarted", false},                     // it is to be updated again
		{"r2", "state PreparingUpdate", false},                      // only a pass knows whether it is still to be updated
		{"r1", "state PreparingNormal; unready", true},
		{"r1", "state PreparingNormal; pending", false},
		{"r1", "state PreparingNormal; withoutCondition", false}, // the task that creates it opens its gates
		{"r1", "", false},
		{"r1; named p", "state PreparingNormal", false},
		{"r1", "state PreparingNormal; label " + apps.LabelSpecifiedDelete + "=true", false},
		{"r1", "state PreparingNormal; terminating", false},
		{"r1", "state PreparingDelete", false},
	} {
		s := counted(snap("InPlaceIfPossible; "+test.set, pod("p", 1, strings.Split(test.pod, "; ")...)))
		decide(t, s)
		if a, ok := Return(s, s.Pods[0], now); ok != test.want {
			t.Errorf("%s, a Pod %q: returns %t (%v), want %t", test.set, test.pod, ok, a, test.want)
		}
	}
	s := snap("r1", pod("p", 1, "state PreparingNormal"))
	s.Deletion = Drain
	if a, ok := Return(s, s.Pods[0], now); ok {
		t.Errorf("a Pod of a set that is deleted returns: %v", a)
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
		order := list.Map(s.orderForUpdate(newPass(s).pods), func(v *podState) string { return v.pod.Name })
		checktest.Same(t, "the order", []string{"c", "a", "b", "d"}, order)
		slices.Reverse(s.Pods)
	}
}

// TestNewIDs: a new instance id differs from all ids with claims.
func TestNewIDs(t *testing.T) {
	if p := Make(snap("replicas 2; claims x")); !p.Actions[1].Taken.Has("x") {
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

// TestField_MarkPodNotReadyIsLiftedOnEveryPath: the present state of a Pod decides about its mark, in
// whichever way the Pod has left a gate.
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
						pod.Finalizers = nil // as the hook operator does
					}
				}
			}
			checktest.Same(t, "Pods in the zones at the end", []int{1, 1, 1}, perZone(s))
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

// describe lists the actions of a plan as text, in order.
func describe(p Plan) []string {
	return list.Map(p.Actions, func(a Action) string { return a.String() })
}

// decide makes a plan and checks the invariants.
func decide(t testing.TB, s *Snapshot) Plan {
	t.Helper()
	p := Make(s)
	checktest.NoError(t, soundness(s, p))
	for _, pod := range s.Pods {
		checktest.NoError(t, hasty(s, p, pod))
	}
	return p
}

// soundness returns an error if a plan breaks an invariant that holds for every snapshot.
func soundness(s *Snapshot, p Plan) error {
	seen := map[string]bool{}
	for _, a := range p.Actions {
		if err := errors.Join(sparing(s, a), untimely(s, a)); err != nil {
			return err
		}
		if a.Verb == Create && (a.Pod != nil || a.Revision == nil) {
			return fmt.Errorf("%v: a new Pod has a revision and no Pod", a)
		}
		if slices.Contains([]Verb{Create, Discard, Provide}, a.Verb) {
			continue
		}
		if a.Pod == nil {
			return fmt.Errorf("%v: no Pod", a)
		}
		if seen[a.Pod.Name] {
			return fmt.Errorf("%v: a second action for the Pod", a)
		}
		seen[a.Pod.Name] = true
		if a.Pod.DeletionTimestamp != nil {
			return fmt.Errorf("%v: the Pod is terminating", a)
		}
		if err := bypassed(s, a); err != nil {
			return err
		}
	}
	return nil
}

// hasty returns an error if a Pod would return during a pass although the next pass would not put it
// back into service, unless that pass removes it.
func hasty(s *Snapshot, p Plan, pod *corev1.Pod) error {
	a, ok := Return(s, pod, s.Now)
	if !ok {
		return nil
	}
	for _, b := range p.Actions {
		if b.Pod == pod && (b.Verb == Delete || b.To == apps.StatePreparingDelete || cmp.Equal(a, b)) {
			return nil
		}
	}
	return fmt.Errorf("%v: a pass does not do that", a)
}

// bypassed returns an error if an action takes a Pod past a hook that holds it.
func bypassed(s *Snapshot, a Action) error {
	at := apps.LifecycleState(a.Pod.Labels[apps.LabelLifecycleState])
	hooked := func(hook lifecycle.Hook) bool { return hook.Holds(a.Pod.Labels, a.Pod.Finalizers) }
	changes := a.Verb == Update || a.Verb == Continue
	switch {
	case a.Verb == Delete && hooked(s.Spec.Hooks.PreDelete):
		return fmt.Errorf("%v: preDelete holds the Pod", a)
	case changes && at != apps.StateUpdating && hooked(s.Spec.Hooks.InPlaceUpdate):
		return fmt.Errorf("%v: inPlaceUpdate holds the Pod", a)
	case changes && at == apps.StatePreparingDelete:
		return fmt.Errorf("%v: the Pod is about to be deleted", a)
	}
	return nil
}

// untimely returns an error if an action does not suit a set that is being deleted, or a
// deletion that the API server has deferred.
func untimely(s *Snapshot, a Action) error {
	switch {
	case a.Verb == Delete && a.Pod != nil && s.Now.Before(s.Deferred[a.Pod.UID].Until):
		return fmt.Errorf("%v: the API server has asked to wait", a)
	case s.Deletion == LetGo, s.Deletion == Drain && a.Verb != Delete && a.Verb != Move:
		return fmt.Errorf("%v: the set is being deleted", a)
	}
	return nil
}

func tally(s *Snapshot) Counts {
	counts, _ := Review(s)
	return counts
}

func waiting(s *Snapshot) []Blocked {
	_, blocked := Review(s)
	return blocked
}

// sparing returns an error if an action takes claims from a Pod that stays.
func sparing(s *Snapshot, a Action) error {
	if len(a.Claims) > 0 != (a.Verb == Discard) && a.Verb != Delete {
		return fmt.Errorf("%v: the verb does not fit its claims", a)
	}
	for _, c := range a.Claims {
		id := c.Labels[apps.LabelInstanceID]
		i := slices.IndexFunc(s.Pods, func(p *corev1.Pod) bool { return p.Name == "web-"+id })
		stays := i >= 0 && s.Pods[i].DeletionTimestamp == nil && (a.Verb != Delete || s.Pods[i] != a.Pod)
		if stays || c.DeletionTimestamp != nil {
			return fmt.Errorf("%v: claim %s is in use, or going already", a, c.Name)
		}
	}
	return nil
}
