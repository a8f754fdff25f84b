// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// presence is what a target shows of a Pod.
type presence struct {
	// err is why nothing is known.
	err error
	// listed means that the Registration has entries there that callers get, or may get
	// again.
	listed bool
	// current means that the wanted entry is among them.
	current bool
	// serving means that callers find the Pod by it, perhaps with outdated weight or
	// metadata.
	serving bool
	// unsettled is why one of them is neither in service nor gone; empty if none is in
	// between.
	unsettled string
	// inService is the Pod if the target is a Service that Kubernetes lists it in.
	inService *pod
	// reason is why the entry is not current.
	reason Reason
	// cause is why a change was refused in this pass; nil if none was.
	cause error
}

// presence looks for the Registration's entries of the Pod.
func (ix *index) presence(r *registration, t Target, p *pod) presence {
	listed, err := ix.look(t)
	switch {
	case err != nil:
		return presence{err: err}
	case ix.gated(t):
		return listed.inService(p)
	}
	return ix.presenceOfEntry(r, t, p, listed)
}

func (ix *index) presenceOfEntry(r *registration, t Target, p *pod, listed *listing) presence {
	want := ix.entry(r, p)
	hasPort := want.Port != 0
	found := presence{cause: ix.failure(t, want.ID)}
	heldBack := ix.heldBack(r, t, p)
	for _, e := range listed.byPod[p.UID] {
		if e.Owner.Registration == r.Name && (!heldBack || inService(e)) {
			found.listed, found.unsettled = true, cmp.Or(found.unsettled, e.Unsettled)
		}
		found.current = found.current || hasPort && want.Same(*e)
		found.serving = found.serving || hasPort && serving(want, *e)
	}
	if found.reason = ReasonPortNotFound; hasPort {
		found.reason = ix.obstacle(r, t, p, listed.byID[want.ID])
	}
	return found
}

// obstacle is why an entry is not current; have is the one with its ID, nil if there is none.
func (ix *index) obstacle(r *registration, t Target, p *pod, have *registry.Entry) Reason {
	switch no := r.refused[t]; {
	case have == nil && no != nil:
		return cmp.Or(no.reason, ReasonNotListed)
	case have == nil:
	case ix.foreign(p.UID, have):
		return ReasonForeignEntry
	case have.Owner.Registration != r.Name && named(p.selectedBy, have.Owner.Registration) != nil:
		return ReasonDuplicate
	}
	return ReasonNotListed
}

// serving reports whether callers that get the entry find the Pod.
func serving(want, have registry.Entry) bool {
	want.Weight, want.Metadata = have.Weight, have.Metadata
	return have.Weight > 0 && want.Same(have)
}

// failure is why a change of the entry failed in this pass; nil if none did.
func (ix *index) failure(t Target, id string) error {
	return cmp.Or(ix.Failed[t][id], ix.Failed[t][""])
}

// refused reports whether a change of one of the Pod's entries failed in this pass.
func (ix *index) refused(p *pod) bool {
	return slices.ContainsFunc(p.selectedBy, func(r *registration) bool {
		return slices.ContainsFunc(r.current, func(t Target) bool { return ix.failure(t, p.id) != nil })
	})
}
