// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
)

// Needs returns the targets that a plan for the snapshot has to list, sorted.
func Needs(snapshot Snapshot) []Target {
	ix := newIndex(snapshot)
	var all []Target
	for _, r := range ix.registrations {
		all = append(all, r.former...)
		changed := r.Generation != r.Status.ObservedGeneration
		for _, t := range r.current {
			if changed || ix.Due[t] || ix.Sweep[t] {
				all = append(all, t)
			}
		}
	}
	for _, p := range ix.pods {
		asked := p.former
		if !p.settled {
			asked = p.all()
		}
		for _, r := range asked {
			all = append(all, r.targets()...)
		}
	}
	return sorted(all)
}

// Targets returns those of every Registration of the snapshot, sorted.
func Targets(snapshot Snapshot) []Target { return newIndex(snapshot).targets() }

func (ix *index) targets() []Target {
	var all []Target
	for _, r := range ix.registrations {
		all = append(all, r.targets()...)
	}
	return sorted(all)
}

// sorted sorts targets, and removes duplicates.
func sorted(targets []Target) []Target {
	slices.SortFunc(targets, compareTargets)
	return slices.Compact(targets)
}

// SortedTargets returns a sorted copy without duplicates.
func SortedTargets(targets []Target) []Target { return sorted(slices.Clone(targets)) }

// isSettled reports whether the Pod itself shows that nothing is left to do for it. Targets
// of settled Pods are listed only when they are due.
func (p *pod) isSettled() bool {
	registered := podread.Status(p.Pod, usherv1alpha1.ConditionRegistered)
	switch {
	case slices.ContainsFunc(p.hooks, func(h hook) bool { return h.leaving() || p.wanted() }):
		return false
	case len(p.selectedBy) == 0, p.DeletionTimestamp != nil:
		return !p.hasFinalizer() && len(p.ownFinalizers()) == 0
	case p.wanted():
		return registered == "True" && p.protected()
	}
	return !p.writes() || registered != "True" && (!p.hasFinalizer() || registered == "False")
}

// ownFinalizers are those that Usher may remove from a terminating Pod.
func (p *pod) ownFinalizers() []string {
	var own []string
	if p.hasFinalizer() {
		own = append(own, usherv1alpha1.Finalizer)
	}
	for _, r := range p.all() {
		for _, key := range r.hookFinalizers(p.Pod) {
			if !slices.Contains(own, key) {
				own = append(own, key)
			}
		}
	}
	return own
}
