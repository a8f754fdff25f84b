// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
)

// describe lists the actions of a plan as text, in order.
func describe(p Plan) []string {
	lines := []string{}
	for _, a := range p.Actions {
		lines = append(lines, a.String())
	}
	return lines
}

// decide makes a plan and checks the invariants.
func decide(t testing.TB, s *Snapshot) Plan {
	t.Helper()
	p := Make(s)
	if err := soundness(s, p); err != nil {
		t.Error(err)
	}
	return p
}

// soundness returns what is wrong with a plan, whatever the snapshot.
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
