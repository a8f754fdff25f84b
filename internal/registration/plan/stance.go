// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// Defaults of spec.nodeFailure.
const (
	// DefaultNodeGrace is how long a Pod stays whose node does not answer.
	DefaultNodeGrace = 15 * time.Second
	// DefaultNodePercent is how many of a Registration's Pods may have left for
	// that reason at a time.
	DefaultNodePercent = 50
)

// stance is what a Registration wants of its entries of a Pod.
type stance int

const (
	// stanceOut: none.
	stanceOut stance = iota
	// stanceIn: one in each registry.
	stanceIn
	// stanceStay: those that are there; nothing is written.
	stanceStay
	// stanceHeld: those that are there, out of service.
	stanceHeld
)

// stanceOf says what the member wants of the Pod's entries now.
func (w *world) stanceOf(m *member, s *subject) stance {
	if !slices.Contains(s.members, m) || s.pod.DeletionTimestamp != nil {
		return stanceOut
	}
	if serves, _ := s.serves(m); serves {
		return stanceIn
	}
	policy := m.registration.Spec.OnInPlaceUpdate
	switch {
	case s.silent:
		if m.kept[s] != nil {
			return stanceStay
		}
	case !updating(s):
	case policy == usherv1alpha1.InPlaceUpdateStay:
		return stanceStay
	case policy == usherv1alpha1.InPlaceUpdateFailOver:
		return stanceHeld
	}
	return stanceOut
}

// updating says whether an update in place is under way, up to the moment that
// the updated Pod is ready.
func updating(s *subject) bool {
	switch s.state {
	case appsv1alpha1.StatePreparingUpdate, appsv1alpha1.StateUpdating, appsv1alpha1.StateUpdated:
		return true
	}
	return false
}

// stays says whether the hook is no reason to leave, for the member.
func (m *member) stays(h hook) bool {
	return h.gate == GateInPlaceUpdate && m.registration.Spec.OnInPlaceUpdate == usherv1alpha1.InPlaceUpdateStay
}

// heldBack says whether the member's entries of the Pod are to stay in a place,
// out of service.
func (w *world) heldBack(m *member, place Place, s *subject) bool {
	return w.Registries[place.Registry].HoldsBack && slices.Contains(m.current, place) && w.stanceOf(m, s) == stanceHeld
}

// Silent reports whether the Pod would be ready if its node answered, and since
// when the node does not. The node controller sets Ready alone when a node falls
// silent: containers and gates still claim that all is well.
func Silent(pod *corev1.Pod) (since time.Time, yes bool) {
	c := condition(pod, corev1.PodReady)
	if c == nil || c.Status == corev1.ConditionTrue || c.Reason == reasonGates || unready(pod) != "" {
		return time.Time{}, false
	}
	return c.LastTransitionTime.Time, true
}

// kept is why a Pod stays listed although its node does not answer.
type kept struct {
	// until is when its grace is over; zero for one that the floor keeps.
	until time.Time
	// message is empty during the grace.
	message string
}

// keepSilent finds the Pods of the member that stay although their nodes do not
// answer: those in their grace, and those without which too few would be left.
// That many silent nodes may be one broken link between them and the API server,
// and callers may find the Pods all the same.
func (w *world) keepSilent(m *member) {
	grace, percent := DefaultNodeGrace, int32(DefaultNodePercent)
	if f := m.registration.Spec.NodeFailure; f != nil {
		grace = durationOf(f.Grace, grace)
		if f.MaxPercent != nil {
			percent = *f.MaxPercent
		}
	}
	m.kept = map[*subject]*kept{}
	var lost []*subject
	total := 0
	for _, s := range m.pods {
		if !s.silent && !s.ready || s.misplaced(m) != "" {
			continue
		}
		total++
		end := s.silentSince.Add(grace)
		switch {
		case !s.silent:
		case w.Now.Before(end):
			m.kept[s] = &kept{until: end}
		default:
			lost = append(lost, s)
		}
	}
	slices.SortFunc(lost, func(a, b *subject) int {
		return cmp.Or(a.silentSince.Compare(b.silentSince), compareStrings(a.pod.Name, b.pod.Name))
	})
	leave := min(total*int(percent)/100, total-1)
	for i, s := range lost {
		if i >= leave {
			m.kept[s] = &kept{message: fmt.Sprintf("its node does not answer, and it stays listed: the nodes of %d of %d Pods "+
				"do not, and spec.nodeFailure.maxPercent is %d; the last one always stays", len(lost), total, percent)}
		}
	}
}
