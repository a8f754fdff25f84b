// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// OrphanFloor is the share of our entries of a service, as a divisor, up to
// which one sweep removes orphans at once. More than that looks like a view of
// the cluster that is wrong: they have to be orphans in the next sweep as well.
const OrphanFloor = 2

// PlaceChanges is what a plan changes in one place.
type PlaceChanges struct {
	Place Place
	// Joins are new or changed entries, sorted by ID.
	Joins []registry.Change
	// Leaves are entries whose Pod or Registration is there to say so; those that
	// are put, with the weight 0, stay out of service.
	Leaves []registry.Change
	// Orphans are entries of Pods or Registrations that are not known. Whoever
	// removes them asks the API server first.
	Orphans []registry.Change
	// Suspects are all orphans that this sweep found, also those it left.
	Suspects map[string]bool
	// Swept says that orphans were looked for.
	Swept bool
	// unsettled says that an entry is on its way out: no event tells when its last
	// request is over.
	unsettled bool
}

// Empty reports whether nothing changes.
func (c PlaceChanges) Empty() bool { return len(c.Joins)+len(c.Leaves)+len(c.Orphans) == 0 }

// changes compares every listed place with what it is to have.
func (w *world) changes() []PlaceChanges {
	var all []PlaceChanges
	for _, place := range w.allPlaces() {
		idx, err := w.look(place)
		if err != nil {
			continue
		}
		changes := PlaceChanges{Place: place, Swept: w.Sweep[place], Suspects: map[string]bool{}}
		claimed := w.joins(place, idx, &changes)
		w.leaves(place, claimed, &changes)
		if !changes.Empty() || changes.Swept {
			all = append(all, changes)
		}
	}
	return all
}

// Places returns those of every Registration of the snapshot, sorted.
func Places(snapshot Snapshot) []Place { return newWorld(snapshot).allPlaces() }

// allPlaces are those of every Registration, sorted.
func (w *world) allPlaces() []Place {
	var all []Place
	for _, m := range w.members {
		all = append(all, m.places()...)
	}
	slices.SortFunc(all, comparePlaces)
	return slices.Compact(all)
}

// joins adds what is missing or different, and returns the IDs that belong there.
func (w *world) joins(place Place, idx *index, changes *PlaceChanges) map[string]bool {
	claimed := map[string]bool{}
	for _, m := range w.members {
		if !slices.Contains(m.current, place) {
			continue
		}
		for _, s := range m.pods {
			// The first Registration by name keeps an entry that two claim.
			if want, hasPort := w.entry(m, s); hasPort && !claimed[want.ID] {
				claimed[want.ID] = w.claim(m, s, want, idx.byID[want.ID], changes)
			}
		}
	}
	sortChanges(changes.Joins)
	return claimed
}

// claim adds what the member wants of its entry of the Pod, and says whether the
// entry belongs there.
func (w *world) claim(m *member, s *subject, want registry.Entry, have *registry.Entry, changes *PlaceChanges) bool {
	mine := have != nil && have.Owner == want.Owner
	switch w.stanceOf(m, s) {
	case stanceIn:
		if have != nil {
			want.Version = have.Version
		}
		if s.protected() && w.mayPut(want, have) {
			changes.Joins = append(changes.Joins, registry.Change{Op: registry.Put, Entry: want})
		}
		return true
	case stanceStay:
		return mine
	case stanceHeld:
		if !mine || !w.heldBack(m, changes.Place, s) {
			return false
		}
		changes.hold(*have)
		return true
	}
	return false
}

// hold takes an entry out of service that stays. Its version keeps it from being
// made anew.
func (c *PlaceChanges) hold(e registry.Entry) {
	if inService(&e) {
		c.unsettled = c.unsettled || e.Unsettled != ""
		e.Weight, e.Unsettled = 0, ""
		c.Leaves = append(c.Leaves, registry.Change{Op: registry.Put, Entry: e})
	}
}

// inService says whether callers get an entry, or may get it again.
func inService(e *registry.Entry) bool { return e.Weight != 0 || e.Unsettled != "" }

// mayPut says whether the wanted entry is to take the place of what is there.
func (w *world) mayPut(want registry.Entry, have *registry.Entry) bool {
	return have == nil || !want.Same(*have) && !w.foreign(types.UID(want.Owner.PodUID), have)
}

// foreign says whether an entry with a Pod's ID is somebody else's.
func (w *world) foreign(uid types.UID, e *registry.Entry) bool {
	return e.Owner.Cluster != w.Cluster || e.Owner.PodUID != string(uid)
}

// leaves adds our entries that nobody claims.
func (w *world) leaves(place Place, claimed map[string]bool, changes *PlaceChanges) {
	var orphans []registry.Change
	ours := 0
	for _, e := range w.Listings[place].Entries {
		if e.Owner.Cluster != w.Cluster {
			continue
		}
		ours++
		remove := registry.Change{Op: registry.Remove, Entry: e}
		switch {
		case claimed[e.ID]:
		case w.deliberate(place, e):
			changes.Leaves = append(changes.Leaves, remove)
			changes.unsettled = changes.unsettled || e.Unsettled != ""
		case w.orphaned(e):
			orphans = append(orphans, remove)
			changes.Suspects[e.ID] = true
		}
	}
	if !changes.Swept {
		return
	}
	if len(orphans)*OrphanFloor > ours {
		orphans = slices.DeleteFunc(orphans, func(c registry.Change) bool {
			return !w.Suspects[place][c.Entry.ID]
		})
	}
	changes.Orphans = orphans
	changes.unsettled = changes.unsettled || slices.ContainsFunc(orphans, func(c registry.Change) bool {
		return c.Entry.Unsettled != ""
	})
}

// deliberate says whether an unclaimed entry is one that the cluster's objects
// themselves ask to remove: a Pod that is there and does not belong, a
// Registration that is leaving the place.
func (w *world) deliberate(place Place, e registry.Entry) bool {
	if e.Owner.Namespace != w.Namespace {
		return false
	}
	at := slices.IndexFunc(w.members, func(m *member) bool { return m.name == e.Owner.Registration })
	if at < 0 {
		return false
	}
	m := w.members[at]
	return m.deleting || slices.Contains(m.former, place) || w.byUID[types.UID(e.Owner.PodUID)] != nil
}

// orphaned says whether the entry's Pod or Registration is not known at all.
// Pods of other namespaces are their own passes' business.
func (w *world) orphaned(e registry.Entry) bool {
	if !w.Known[e.Owner.Namespace+"/"+e.Owner.Registration] {
		return true
	}
	return e.Owner.Namespace == w.Namespace && w.byUID[types.UID(e.Owner.PodUID)] == nil
}

func sortChanges(changes []registry.Change) {
	slices.SortFunc(changes, func(a, b registry.Change) int { return strings.Compare(a.Entry.ID, b.Entry.ID) })
}

// presence is what a place says of a Pod.
type presence struct {
	// err says why nothing is known.
	err error
	// listed are the member's entries there that callers get, or may get again.
	listed bool
	// current says that the one wanted is among them.
	current bool
	// serving says that callers find the Pod by it, if perhaps with an outdated
	// weight or metadata.
	serving bool
	// unsettled is why one of them is neither in service nor gone; empty if none
	// is in between.
	unsettled string
	// reason says what is in the way of an entry that is not current.
	reason Reason
	// cause is why a change was refused in this pass; nil if none was.
	cause error
}

// presence looks for the member's entries of the Pod.
func (w *world) presence(m *member, place Place, s *subject) presence {
	idx, err := w.look(place)
	if err != nil {
		return presence{err: err}
	}
	want, hasPort := w.entry(m, s)
	p := presence{cause: cmp.Or(w.Failed[place][want.ID], w.Failed[place][""])}
	out := w.heldBack(m, place, s)
	for _, e := range idx.byPod[s.pod.UID] {
		if e.Owner.Registration == m.name && (!out || inService(e)) {
			p.listed, p.unsettled = true, cmp.Or(p.unsettled, e.Unsettled)
		}
		p.current = p.current || hasPort && want.Same(*e)
		p.serving = p.serving || hasPort && serving(want, *e)
	}
	if p.reason = ReasonPortNotFound; hasPort {
		p.reason = w.obstacle(m, s, idx.byID[want.ID])
	}
	return p
}

// obstacle says what keeps an entry from being as it should be; have is the one
// with its ID, nil if there is none.
func (w *world) obstacle(m *member, s *subject, have *registry.Entry) Reason {
	switch {
	case have == nil:
	case w.foreign(s.pod.UID, have):
		return ReasonForeignEntry
	case s.claimedByAnother(m, have.Owner.Registration):
		return ReasonDuplicate
	}
	return ReasonNotListed
}

// serving says whether callers that have the entry find the Pod.
func serving(want, have registry.Entry) bool {
	want.Weight, want.Metadata = have.Weight, have.Metadata
	return have.Weight > 0 && want.Same(have)
}

// refused says whether a change of one of the Pod's entries failed in this pass.
func (w *world) refused(s *subject) bool {
	for _, m := range s.members {
		for _, place := range m.current {
			if cmp.Or(w.Failed[place][s.id], w.Failed[place][""]) != nil {
				return true
			}
		}
	}
	return false
}

// claimedByAnother says whether the name is that of another Registration of the Pod.
func (s *subject) claimedByAnother(m *member, name string) bool {
	return name != m.name && slices.ContainsFunc(s.members, func(other *member) bool { return other.name == name })
}

// settled says whether nothing is left to do for the Pod, as far as the Pod
// itself tells. Places of settled Pods are only listed when they are due.
func (w *world) settled(s *subject) bool {
	registered := conditionStatus(s.pod, usherv1alpha1.ConditionRegistered)
	for _, h := range s.hooks {
		if h.leaving() || s.wanted() {
			return false
		}
	}
	switch {
	case len(s.members) == 0, s.pod.DeletionTimestamp != nil:
		return !s.finalized() && len(s.ownFinalizers()) == 0
	case s.wanted():
		return registered == "True" && s.protected()
	}
	return registered != "True" && (!s.finalized() || registered == "False")
}

// ownFinalizers are those that we may take off a terminating Pod.
func (s *subject) ownFinalizers() []string {
	var own []string
	if s.finalized() {
		own = append(own, usherv1alpha1.Finalizer)
	}
	for _, m := range slices.Concat(s.members, s.leavers) {
		for _, key := range m.hookFinalizers(s.pod) {
			if !slices.Contains(own, key) {
				own = append(own, key)
			}
		}
	}
	return own
}

// Needs returns the places that the plan for the snapshot depends on, sorted.
func Needs(snapshot Snapshot) []Place {
	w := newWorld(snapshot)
	var all []Place
	add := func(places []Place) { all = append(all, places...) }
	for _, m := range w.members {
		add(m.former)
		if m.registration.Generation != m.registration.Status.ObservedGeneration {
			add(m.current)
		}
		for _, place := range m.current {
			if w.Due[place] || w.Sweep[place] {
				add([]Place{place})
			}
		}
	}
	for _, s := range w.subjects {
		for _, m := range s.leavers {
			add(m.places())
		}
		if w.settled(s) {
			continue
		}
		for _, m := range s.members {
			add(m.places())
		}
	}
	slices.SortFunc(all, comparePlaces)
	return slices.Compact(all)
}

// responsible are the Registrations that may have entries of the Pod.
func (s *subject) responsible() []*member { return slices.Concat(s.members, s.leavers) }
