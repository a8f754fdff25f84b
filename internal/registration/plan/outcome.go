// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// outcome sums up what the plan says of one Registration.
func (w *world) outcome(m *member, p *Plan) Outcome {
	o := Outcome{Registration: m.registration, SelectorErr: m.selectorErr, Pods: int32(len(m.pods)),
		HasCloneSet: len(m.sets) > 0}
	joining := false
	for _, s := range m.pods {
		serves, _ := s.serves(m)
		joining = joining || serves
		w.count(m, s, &o)
	}
	o.PerRegistry = w.perRegistry(m)
	for _, missing := range m.missing {
		o.Missing = append(o.Missing, Waiting{Registration: m.name, Registry: missing.name}.
			because(missing.reason, missing.message(w.Namespace)))
	}
	recorded := m.registration.Status.Targets
	o.Targets = recorded
	if joining {
		for _, place := range m.current {
			o.Targets = append(slices.Clone(o.Targets), usherv1alpha1.Target(place))
		}
	}
	o.Targets = SortedTargets(o.Targets)
	o.Protected = len(o.Targets) > 0
	for _, target := range SortedTargets(recorded) {
		if !w.vacated(m, Place(target)) {
			o.Kept = append(o.Kept, target)
		}
	}
	o.Released = m.deleting && w.released(m)
	if m.deleting && !o.Released {
		p.Waiting = append(p.Waiting, w.unreachable(m)...)
	}
	return o
}

// SortedTargets returns a sorted copy without duplicates.
func SortedTargets(targets []usherv1alpha1.Target) []usherv1alpha1.Target {
	targets = slices.Clone(targets)
	slices.SortFunc(targets, func(a, b usherv1alpha1.Target) int { return comparePlaces(Place(a), Place(b)) })
	return slices.Compact(targets)
}

// count adds one Pod to the counts of the status.
func (w *world) count(m *member, s *subject, o *Outcome) {
	registered := len(m.current) > 0 && len(m.missing) == 0
	for _, place := range m.current {
		p := w.presence(m, place, s)
		if p.err != nil {
			// What was not listed in this pass is what the Pod says of it.
			p.current = conditionStatus(s.pod, usherv1alpha1.ConditionRegistered) == corev1.ConditionTrue
		}
		registered = registered && p.current
	}
	if registered {
		o.Registered++
	}
	if !s.ready {
		o.NotReady++
	}
	if s.pod.DeletionTimestamp != nil && len(s.ownFinalizers()) > 0 || slices.ContainsFunc(s.hooks, hook.leaving) {
		o.Draining++
	}
}

// vacated says whether a place that the member has left is known to list
// nothing of it, or can never be asked again.
func (w *world) vacated(m *member, place Place) bool {
	if slices.Contains(m.current, place) {
		return false
	}
	if !slices.Contains(m.former, place) {
		return true
	}
	if _, err := w.look(place); err != nil {
		return false
	}
	for _, e := range w.Listings[place].Entries {
		if e.Owner.Cluster == w.Cluster && e.Owner.Namespace == w.Namespace && e.Owner.Registration == m.name {
			return false
		}
	}
	return true
}

// released says whether a Registration that is being deleted can go.
func (w *world) released(m *member) bool {
	for _, place := range m.former {
		if !w.vacated(m, place) {
			return false
		}
	}
	// Its Pods are let go first: afterwards nobody knows where they were.
	for _, s := range w.subjects {
		if len(s.members) == 0 && slices.Contains(s.leavers, m) && s.finalized() {
			return false
		}
	}
	return true
}

// unreachable says what a Registration that is being deleted waits for.
func (w *world) unreachable(m *member) []Waiting {
	var waiting []Waiting
	for _, place := range m.former {
		if _, err := w.look(place); err != nil {
			base := Waiting{
				Registration: m.name, Gate: GateDeletion, Registry: place.Registry,
				Since: m.registration.DeletionTimestamp.Time,
			}
			waiting = append(waiting, base.unknown(err))
		}
	}
	return waiting
}
