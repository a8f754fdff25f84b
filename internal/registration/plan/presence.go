// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// presence is what a target shows of a Pod.
type presence struct {
	// err is why nothing is known for sure; reason may say what was known last. absent means that there is no such
	// service, and so nobody is called through it.
	err    error
	absent bool
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
	// connections are how many they still have if all of them get no new ones; nil if one does, or nobody counts.
	connections *int64
	// inService is the Pod if the target is a Service that Kubernetes lists it in.
	inService *pod
	// steered means that Usher can take it out of there.
	steered bool
	// reason is why the entry is not current; why says it in words, if the reason does not.
	reason Reason
	why    string
	// wrote means that its application has entries there, overridden that one of them is taken out of service, and
	// let that nothing is asked of them but that no override lasts.
	wrote, overridden, let bool
	// cause is why a change was refused in this pass; nil if none was.
	cause error
}

// presence looks for the Registration's entries of the Pod.
func (ix *index) presence(r *registration, t Target, p *pod) presence {
	listed, err := ix.look(t)
	switch {
	case err != nil:
		return presence{err: err, absent: ix.nobodyThere(t, err)}
	case ix.gated(t):
		return ix.inServiceOf(r, t, p, listed)
	case ix.follows(t):
		return ix.presenceFollowed(r, t, p, listed)
	case r.byApplication():
		return ix.presenceOfApplication(r, t, p, listed)
	}
	return ix.presenceOfEntry(r, t, p, listed)
}

func (ix *index) presenceOfEntry(r *registration, t Target, p *pod, listed *targetListing) presence {
	want := ix.entry(r, p)
	lacks := incomplete(&want)
	found := presence{cause: ix.failure(t, want.ID)}
	heldBack := ix.heldBack(r, t, p)
	for _, e := range listed.ByOwner(p.UID) {
		if e.Owner.Registration == r.Name && (!heldBack || inService(e)) {
			found.connections = connected(found, e)
			found.listed, found.unsettled = true, cmp.Or(found.unsettled, e.Unsettled)
		}
		found.current = found.current || lacks == "" && want.Same(*e)
		found.serving = found.serving || serving(want, *e)
	}
	if found.reason = lacks; lacks == "" {
		found.reason = ix.obstacle(r, t, p, listed.ByID(want.ID))
	}
	return found
}

// connected adds the connections of an entry to those that were found before; nil if not all are counted.
func connected(found presence, e *registry.Entry) *int64 {
	switch {
	case e.Connections == nil, found.listed && found.connections == nil:
		return nil
	case !found.listed:
		return new(int64(*e.Connections))
	}
	return new(*found.connections + int64(*e.Connections))
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

// serving reports whether callers that get the entry find the Pod. If it is not known where they should find
// it, an entry of before counts.
func serving(want, have registry.Entry) bool {
	want.Weight, want.Metadata = have.Weight, have.Metadata
	if incomplete(&want) != "" {
		want.Address, want.Port = have.Address, have.Port
	}
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

// lacksAnything reports whether the Pod's entries of a Registration lack what they need to be written.
func (ix *index) lacksAnything(p *pod) bool {
	return slices.ContainsFunc(p.selectedBy, func(r *registration) bool {
		want := ix.entry(r, p)
		return r.writes && incomplete(&want) != ""
	})
}

// maxDifferences bounds how many entries a status names.
const maxDifferences = 10

// maxName bounds the name of a Pod that an entry names, in bytes: a registry may list anything.
const maxName = 253

// Reasons of differences that no Pod waits for.
const (
	// ReasonOrphan: the entry's Pod or Registration is gone.
	ReasonOrphan Reason = "Orphan"
	// ReasonDifferent: the entry is there, with another address, weight or metadata.
	ReasonDifferent Reason = "Different"
)

// compare compares what one of the Registration's registries lists in these targets with what it
// should list. If they were not all listed in this pass, the status says what it said.
func (ix *index) compare(r *registration, targets []Target, one *usherv1alpha1.RegistryPods) {
	now := usherv1alpha1.RegistryPods{Entries: new(int32(0))}
	for _, t := range targets {
		listed, err := ix.look(t)
		if err != nil {
			return
		}
		if ix.writesTo(t) {
			ix.compareEntries(r, t, listed, &now)
		}
		if slices.Contains(r.current, t) {
			ix.comparePods(r, t, &now)
		}
	}
	slices.SortFunc(now.Differences, func(a, b usherv1alpha1.EntryDifference) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Entry, b.Entry), cmp.Compare(a.Reason, b.Reason))
	})
	one.Entries, one.Differing = now.Entries, int32(len(now.Differences))
	one.Differences = now.Differences[:min(len(now.Differences), maxDifferences)]
}

// compareEntries counts the Registration's entries in a target, and finds those whose Pod it
// does not select: comparePods finds the others.
func (ix *index) compareEntries(r *registration, t Target, listed *targetListing, now *usherv1alpha1.RegistryPods) {
	for _, e := range listed.Entries() {
		if e.Owner.Cluster != ix.Cluster {
			continue
		}
		mine := e.Owner.Namespace == ix.Namespace && e.Owner.Registration == r.Name
		if mine {
			*now.Entries++
		}
		switch {
		case ix.orphaned(e):
			differs(now, e.Owner.Pod, e.ID, ReasonOrphan)
		case mine && !ix.selects(r, t, e):
			differs(now, e.Owner.Pod, e.ID, ReasonStillListed)
		}
	}
}

func differs(now *usherv1alpha1.RegistryPods, pod, entry string, reason Reason) {
	now.Differences = append(now.Differences, usherv1alpha1.EntryDifference{
		Pod: Shorten(pod, maxName), Entry: Shorten(entry, maxError), Reason: string(reason)})
}

// selects reports whether the entry's Pod belongs to the Registration, and in this target.
func (ix *index) selects(r *registration, t Target, e *registry.Entry) bool {
	p := ix.byUID[types.UID(e.Owner.PodUID)]
	return p != nil && slices.Contains(p.selectedBy, r) && slices.Contains(r.current, t)
}

// comparePods finds the Pods that a current target lists otherwise than it should, and counts
// those of a target that Usher does not write.
func (ix *index) comparePods(r *registration, t Target, now *usherv1alpha1.RegistryPods) {
	for _, p := range r.pods {
		if (r.byApplication() || !ix.writesTo(t)) && ix.presence(r, t, p).serving {
			*now.Entries++
		}
		if p.idle != nil {
			continue
		}
		if reason := ix.differs(r, t, p); reason != "" {
			differs(now, p.Name, ix.nameIn(r, p), reason)
		}
	}
}

// differs is why a target does not list a Pod as it should; empty if it does.
func (ix *index) differs(r *registration, t Target, p *pod) Reason {
	found := ix.presence(r, t, p)
	switch want := ix.desiredAt(r, t, p); {
	case want == unchanged:
		return ""
	case want == present:
		return ix.misses(t, found)
	case ix.gated(t) && !found.serving, !found.listed:
		return ""
	}
	return Waiting{}.stillListed(found).Reason
}

// misses is why a target does not list a Pod that it should list.
func (ix *index) misses(t Target, found presence) Reason {
	switch {
	case found.current:
		return ""
	case found.cause != nil:
		return Waiting{}.failed(found.cause).Reason
	case found.listed && found.reason == ReasonNotListed && ix.writesTo(t):
		return ReasonDifferent
	}
	return found.reason
}
