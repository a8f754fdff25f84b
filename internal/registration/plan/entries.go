// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// OrphanFloor is the share of our entries of a service, as a divisor, up to which one sweep
// removes orphans at once. More than that looks like a wrong view of the cluster: they must
// be orphans in the next sweep as well.
const OrphanFloor = 2

// Changes are what a plan changes in one target.
type Changes struct {
	Target Target
	// Joins are new or changed entries, sorted by ID.
	Joins []registry.Change
	// Leaves are entries whose Pod or Registration asks for it; those that are put, with
	// weight 0, stay out of service.
	Leaves []registry.Change
	// Orphans are entries of unknown Pods or Registrations. Ask the API server before
	// removing them.
	Orphans []registry.Change
	// Suspects are all orphans that this sweep found, including those it left.
	Suspects map[string]bool
	// Swept means that orphans were looked for.
	Swept bool
	// Reasons are why entries change, by ID, for the log.
	Reasons map[string]string
	// Calls are requests to applications that make changes themselves, by ID: these are not sent to the registry.
	Calls map[string]Call
	// unsettled means that an entry is on its way out: no event reports the end of its last
	// request.
	unsettled bool
}

// Empty reports whether nothing changes.
func (c Changes) Empty() bool { return len(c.Joins)+len(c.Leaves)+len(c.Orphans) == 0 }

// changes compares what every listed target has with what it should have.
func (ix *index) changes() []Changes {
	var all []Changes
	for _, t := range ix.targets() {
		listed, err := ix.look(t)
		if err != nil {
			continue
		}
		c := Changes{
			Target: t, Swept: ix.Sweep[t],
			Suspects: map[string]bool{}, Reasons: map[string]string{}, Calls: map[string]Call{},
		}
		if ix.writesTo(t) {
			claimed := ix.joins(listed, &c)
			ix.leaves(listed, claimed, &c)
			ix.override(listed, &c)
		}
		if !c.Empty() || c.Swept {
			all = append(all, c)
		}
	}
	return all
}

// joins adds what is missing or different, and returns the IDs that belong there, without
// those of idle Pods.
func (ix *index) joins(listed *targetListing, c *Changes) map[string]bool {
	claimed := map[string]bool{}
	for _, r := range ix.registrations {
		if r.byApplication() || !slices.Contains(r.current, c.Target) {
			continue
		}
		for _, p := range r.pods {
			if p.idle != nil {
				continue
			}
			// The first Registration by name keeps an entry that two claim.
			if want := ix.entry(r, p); !claimed[want.ID] {
				claimed[want.ID] = ix.claim(r, p, want, listed.ByID(want.ID), c)
			}
		}
	}
	slices.SortFunc(c.Joins, func(a, b registry.Change) int { return strings.Compare(a.Entry.ID, b.Entry.ID) })
	return claimed
}

// claim adds what the Registration wants of its entry of the Pod, and reports whether the
// entry belongs there.
func (ix *index) claim(r *registration, p *pod, want registry.Entry, have *registry.Entry, c *Changes) bool {
	mine := have != nil && have.Owner == want.Owner
	switch desired := ix.desiredOf(r, p); {
	case desired == present && incomplete(&want) != "":
		return mine // a wrong name of a port takes nobody out of service
	case desired == present:
		if p.protected() && ix.mayPut(r, c.Target, want, have) {
			c.put(want, have)
		}
		return true
	case desired == unchanged:
		return mine
	case desired == outOfService:
		if !mine || !ix.heldBack(r, c.Target, p) {
			return false
		}
		c.holdBack(*have)
		return true
	}
	return false
}

// put writes an entry, in place of the one that is there.
func (c *Changes) put(want registry.Entry, have *registry.Entry) {
	c.Reasons[want.ID] = "it is not listed"
	if have != nil {
		want.Version = have.Version
		c.Reasons[want.ID] = "the entry differs"
	}
	c.Joins = append(c.Joins, registry.Change{Op: registry.Put, Entry: want})
}

// holdBack takes an entry out of service that stays. Its version prevents that it is
// created again.
func (c *Changes) holdBack(e registry.Entry) {
	if inService(&e) {
		c.unsettled = c.unsettled || e.Unsettled != ""
		e.Weight, e.Unsettled = 0, ""
		c.Leaves = append(c.Leaves, registry.Change{Op: registry.Put, Entry: e})
		c.Reasons[e.ID] = "it fails over during its update"
	}
}

// inService reports whether callers get an entry, or may get it again.
func inService(e *registry.Entry) bool { return e.Weight != 0 || e.Unsettled != "" }

// mayPut reports whether the wanted entry should be written, or replace the existing one.
func (ix *index) mayPut(r *registration, t Target, want registry.Entry, have *registry.Entry) bool {
	if have == nil {
		return r.refused[t] == nil
	}
	return !want.Same(*have) && !ix.foreign(types.UID(want.Owner.PodUID), have)
}

// foreign reports whether an entry with a Pod's ID belongs to somebody else.
func (ix *index) foreign(uid types.UID, e *registry.Entry) bool {
	return e.Owner.Cluster != ix.Cluster || e.Owner.PodUID != string(uid)
}

// leaves adds our entries that nobody claims.
func (ix *index) leaves(listed *targetListing, claimed map[string]bool, c *Changes) {
	ours := 0
	for _, e := range listed.Entries() {
		if e.Owner.Cluster != ix.Cluster {
			continue
		}
		ours++
		switch {
		case claimed[e.ID], ix.ofIdlePod(c.Target, e):
		case ix.deliberate(c.Target, e):
			c.Leaves = append(c.Leaves, registry.Change{Op: registry.Remove, Entry: *e})
			c.Reasons[e.ID] = ix.whyRemoved(e)
		case ix.orphaned(e):
			c.Orphans = append(c.Orphans, registry.Change{Op: registry.Remove, Entry: *e})
			c.Reasons[e.ID] = "its Pod or Registration is gone"
			c.Suspects[e.ID] = true
		}
	}
	switch {
	case !c.Swept:
		c.Orphans = nil
	case len(c.Orphans)*OrphanFloor > ours:
		c.Orphans = list.Only(c.Orphans, func(change registry.Change) bool { return ix.Suspects[c.Target][change.Entry.ID] })
	}
	c.unsettled = c.unsettled || slices.ContainsFunc(slices.Concat(c.Leaves, c.Orphans), func(change registry.Change) bool {
		return change.Entry.Unsettled != ""
	})
}

// ofIdlePod reports whether the entry is the one that an idle Pod should have there.
func (ix *index) ofIdlePod(t Target, e *registry.Entry) bool {
	p := ix.byUID[types.UID(e.Owner.PodUID)]
	return p != nil && p.idle != nil && p.id == e.ID &&
		slices.ContainsFunc(p.selectedBy, func(r *registration) bool { return slices.Contains(r.current, t) })
}

// deliberate reports whether the cluster's objects themselves ask to remove an unclaimed
// entry: a Pod that exists and does not belong, or a Registration that leaves the target.
func (ix *index) deliberate(t Target, e *registry.Entry) bool {
	if e.Owner.Namespace != ix.Namespace {
		return false
	}
	r := named(ix.registrations, e.Owner.Registration)
	return r != nil && (r.DeletionTimestamp != nil || slices.Contains(r.former, t) || ix.byUID[types.UID(e.Owner.PodUID)] != nil)
}

// whyRemoved is why a deliberate removal is one.
func (ix *index) whyRemoved(e *registry.Entry) string {
	p := ix.byUID[types.UID(e.Owner.PodUID)]
	if p == nil {
		return "its Pod is gone"
	}
	r := named(p.selectedBy, e.Owner.Registration)
	if r == nil {
		return "the Registration does not select the Pod any more"
	}
	return cmp.Or(p.unfit(r), "the Registration does not use this service any more")
}

// orphaned reports whether the entry's Pod or Registration is unknown. Pods of other
// namespaces are left to the passes over those.
func (ix *index) orphaned(e *registry.Entry) bool {
	if !ix.Known[e.Owner.Namespace+"/"+e.Owner.Registration] {
		return true
	}
	return e.Owner.Namespace == ix.Namespace && ix.byUID[types.UID(e.Owner.PodUID)] == nil
}

// desired is what a Registration wants of its entries of a Pod.
type desired int

const (
	// absent: no entry.
	absent desired = iota
	// present: one entry in each registry.
	present
	// unchanged: existing entries stay; nothing is written.
	unchanged
	// outOfService: existing entries stay, and get no callers.
	outOfService
)

// desiredOf is what a Registration wants of the entries that Usher writes, or of those of its applications.
func (ix *index) desiredOf(r *registration, p *pod) desired {
	if r.byApplication() && r.writes {
		return ix.desiredOfApplication(r, p)
	}
	return ix.desiredOfUsher(r, p)
}

// desiredAt is what a Registration wants in one target.
func (ix *index) desiredAt(r *registration, t Target, p *pod) desired {
	if ix.overrides(r, t) {
		return ix.desiredOfApplication(r, p)
	}
	return ix.desiredOfUsher(r, p)
}

func (ix *index) desiredOfUsher(r *registration, p *pod) desired {
	if p.DeletionTimestamp != nil || p.requested() || !slices.Contains(p.selectedBy, r) {
		return absent
	}
	if p.unfit(r) == "" {
		return present
	}
	policy := r.Spec.OnInPlaceUpdate
	switch {
	case p.silent:
		if r.kept[p] != nil {
			return unchanged
		}
	case !p.updating():
	case policy == usherv1alpha1.InPlaceUpdateStay:
		return unchanged
	case policy == usherv1alpha1.InPlaceUpdateFailOver:
		return outOfService
	}
	return absent
}

// unfit is why the Registration does not want the Pod in its registries; empty if it does.
func (p *pod) unfit(r *registration) string { return cmp.Or(p.misplaced(r), p.unready) }

// misplaced is why no Pod in this state belongs in the Registration's registries; empty if
// it does.
func (p *pod) misplaced(r *registration) string {
	if p.goes != "" && !p.queued {
		return p.goes
	}
	if p.requested() {
		return fmt.Sprintf("%s asked to delete it at %s", p.request.By, p.request.Since.UTC().Format(time.RFC3339))
	}
	switch p.state {
	case appsv1alpha1.StateNormal, appsv1alpha1.StateUpdated:
		return ""
	case appsv1alpha1.StatePreparingNormal:
		if len(r.answeredKeys(r.Spec.Hooks.PreNormal, p.lifecycle.PreNormal)) == 0 {
			return "it is PreparingNormal, and the Registration answers no preNormal hook"
		}
		return ""
	case appsv1alpha1.StatePreparingUpdate, appsv1alpha1.StateUpdating, appsv1alpha1.StatePreparingDelete:
	}
	return "it is " + string(p.state)
}

// wanted reports whether any registry should list the Pod. None should list a terminating one, which can get no
// finalizer.
func (p *pod) wanted() bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.selectedBy, func(r *registration) bool {
		return (p.unfit(r) == "" || r.labels && p.canEnter(r) || r.byApplication() && p.mayRegister()) && r.operates(p)
	})
}

// mayRegister reports whether the application of a new Pod may register itself by now: it does so before its Pod is
// Ready, and callers use it from then on.
func (p *pod) mayRegister() bool {
	starts := p.state == appsv1alpha1.StatePreparingNormal || p.state == appsv1alpha1.StateNormal
	return p.isNew() && starts && p.Status.Phase == corev1.PodRunning && p.goes == "" && !p.requested()
}

// updating reports whether an in-place update is under way, until the updated Pod is ready.
func (p *pod) updating() bool {
	return slices.Contains([]appsv1alpha1.LifecycleState{
		appsv1alpha1.StatePreparingUpdate, appsv1alpha1.StateUpdating, appsv1alpha1.StateUpdated}, p.state)
}

// remains reports whether the Registration keeps the Pod listed through an update in place, ready or not.
func (p *pod) remains(r *registration) bool {
	stays := r.Spec.OnInPlaceUpdate == usherv1alpha1.InPlaceUpdateStay
	return stays && p.updating() && p.DeletionTimestamp == nil && p.goes == "" && p.request == nil
}

// heldBack reports whether the Registration's entries of the Pod should stay in a target,
// out of service.
func (ix *index) heldBack(r *registration, t Target, p *pod) bool {
	return ix.Registries[t.Registry].HoldsBack && slices.Contains(r.current, t) && ix.desiredOf(r, p) == outOfService
}

// EntryID is the ID of a Pod's entries: readable, and different for another Pod of the
// same name.
func EntryID(pod *corev1.Pod) string { return registry.PodID(pod.Namespace, pod.Name, string(pod.UID)) }

// entry is what the Registration's registries should list for the Pod; its port is 0 if the Pod
// has none of that name, its address empty if the Pod has none of that family.
func (ix *index) entry(r *registration, p *pod) registry.Entry {
	v := p.valuesFor(r)
	return registry.Entry{
		ID: p.id, Address: addressOf(p.Pod, r.Spec.Instance.IPFamily), Port: portOf(p.Pod, r.Spec.Instance.Port), Weight: v.weight, Metadata: v.metadata,
		Owner: registry.Owner{
			Cluster: ix.Cluster, Namespace: p.Namespace, Registration: r.Name, Pod: p.Name, PodUID: string(p.UID),
		},
	}
}

// incomplete is what an entry lacks to be written; empty if nothing.
func incomplete(e *registry.Entry) Reason {
	switch {
	case e.Port == 0:
		return ReasonPortNotFound
	case e.Address == "":
		return ReasonAddressNotFound
	}
	return ""
}

// Expected is the entry of a Pod that a Registration selects, as it should be in each of the
// Registration's registries.
type Expected struct {
	// Pod is the Pod's name, ID that of the entry; of an application's entry, its address and port.
	Pod, ID string
	Address string
	Port    int32
	// Hidden means that callers should not get it.
	Hidden bool
	// Listed means that the entry should be there. If not, Why says why not.
	Listed bool
	Why    string
}

// Expect returns the entries that Registrations want, by Registration and Pod. It is made of
// the objects alone: no registry is asked.
func Expect(snapshot Snapshot) []Expected {
	ix := newIndex(snapshot)
	var all []Expected
	for _, r := range ix.registrations {
		ix.keepSilent(r)
		for _, p := range r.pods {
			entry, want := ix.entry(r, p), ix.desiredOfUsher(r, p)
			listed := want != absent
			if r.byApplication() {
				listed = ix.desiredOfApplication(r, p) == present
			}
			all = append(all, Expected{
				Pod: p.Name, ID: ix.nameIn(r, p), Address: entry.Address,
				Port: entry.Port, Listed: listed, Hidden: want == outOfService, Why: p.unfit(r),
			})
		}
	}
	return all
}
