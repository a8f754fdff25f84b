// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// The entries of some registries are written by somebody else, such as the controller of a cloud's load
// balancer, which follows a Service. Usher only lists these: a Pod has joined when an entry with its address is
// in service, and is gone when none gets callers any more. Such a target is called followed. No event tells of
// its changes, so it is asked again for as long as a Pod waits for it.

// FollowEvery is how often a followed target is asked at most.
const FollowEvery = 2 * time.Second

// Followed is what a pass knows of a followed target besides its listing.
type Followed struct {
	// Again is when it can be asked again.
	Again time.Time
	// Stale means that it was not asked in this pass: what it listed before shows whom Pods still wait for,
	// and confirms nothing.
	Stale bool
}

// follows reports whether somebody else writes the entries of a target.
func (ix *index) follows(t Target) bool { return ix.Registries[t.Registry].Follows }

// writesTo reports whether Usher writes the entries of a target.
func (ix *index) writesTo(t Target) bool { return !ix.gated(t) && !ix.follows(t) }

// addressKey is the key of an address's entries in a listing. A Pod's own entries have the Pod's UID as their key.
func addressKey(address string) types.UID { return types.UID("@" + address) }

// entriesOf are the entries of a Pod: those that it owns, or in a followed target those with its address. Pods in
// their node's network share an address; the port tells them apart.
func (l *targetListing) entriesOf(p *pod, port int32) []*registry.Entry {
	if !l.followed {
		return l.ByOwner(p.UID)
	}
	shares := port != 0 && p.Status.PodIP == p.Status.HostIP
	var found []*registry.Entry
	for _, address := range addressesOf(p.Pod) {
		of := l.ByOwner(addressKey(address))
		found = append(found, list.Only(of, func(e *registry.Entry) bool { return !shares || e.Port == port })...)
	}
	return found
}

// addressesOf are the addresses of a Pod, each once.
func addressesOf(pod *corev1.Pod) []string {
	all := append([]string{pod.Status.PodIP}, list.Map(pod.Status.PodIPs, func(ip corev1.PodIP) string { return ip.IP })...)
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(address string) bool { return address == "" })
}

// presenceFollowed looks for the Pod in a followed target. What is not from this pass confirms neither that the Pod
// is there nor that it is gone.
func (ix *index) presenceFollowed(r *registration, t Target, p *pod, listed *targetListing) presence {
	found := presenceIn(listed.entriesOf(p, portOf(p.Pod, r.Spec.Instance.Port)))
	switch {
	case ix.Followed[t].Stale && !found.listed: // a Pod that joins waits for that
		return presence{err: errNotListed, reason: found.reason, why: found.why}
	case ix.Followed[t].Stale && found.current:
		return presence{err: errNotListed}
	case !found.current:
	case !ix.takesOut(p):
		found.why = "nothing that its Registrations name takes it out of there: add a Registry of the kind service to spec.registries"
	case ix.gatesOnly(r):
		found.why = "whoever writes there may not follow readiness gates: use a Registry of the kind service with a label"
	}
	return found
}

// presenceIn is what a Pod's entries in a followed target show.
func presenceIn(entries []*registry.Entry) presence {
	found := presence{reason: ReasonNotListed}
	for _, e := range entries {
		found.listed = found.listed || inService(e)
		found.current = found.current || e.Weight > 0 && e.Unsettled == ""
		found.why = cmp.Or(found.why, e.Unsettled, e.Hidden)
		if e.Weight == 0 {
			found.unsettled = cmp.Or(found.unsettled, e.Unsettled)
		}
	}
	if found.serving = found.current; found.current {
		found.unsettled = ""
	}
	return found
}

// takesOut reports whether Usher takes the Pod out of anything that others may follow.
func (ix *index) takesOut(p *pod) bool {
	return slices.ContainsFunc(p.all(), func(r *registration) bool {
		return slices.ContainsFunc(r.targets(), func(t Target) bool { return ix.writesTo(t) || ix.gated(t) && ix.steers(p, t) })
	})
}

// gatesOnly reports whether Pods leave all Services of the Registration by the readiness gate.
func (ix *index) gatesOnly(r *registration) bool { return r.gated && !r.labels }

// holdsFollowed reports whether a hook waits for a followed target: only on behalf of a Registration that selects
// the Pod, since nothing else takes the Pod out of there. A deletion does not wait for what cannot happen.
func (ix *index) holdsFollowed(r *registration, p *pod, h hook) bool {
	takesOut := ix.takesOut(p)
	if takesOut && h.gate == GateRequested && r.ends() && slices.Contains(p.former, r) {
		return true
	}
	return slices.Contains(p.selectedBy, r) && (takesOut || h.gate != GateRequested)
}

// asksAbout reports whether a followed target is to be listed for the Pod: the Pod is ready to join, or leaves.
func (p *pod) asksAbout(r *registration) bool {
	return p.DeletionTimestamp == nil && (p.unfit(r) == "" || slices.ContainsFunc(p.hooks, hook.leaving))
}

// asked are the targets that are listed for a Pod that is not settled.
func (ix *index) asked(p *pod, all []*registration) (targets []Target) {
	for _, r := range all {
		targets = append(targets, list.Only(r.targets(), func(t Target) bool { return !ix.follows(t) || p.asksAbout(r) })...)
	}
	return targets
}

// followAgain is when to plan again because somebody waits for a followed target; zero if nobody does. A registry
// that is down is asked by others first.
func (ix *index) followAgain(waiting []Waiting) (next time.Time) {
	awaited := map[string]bool{}
	for i := range waiting {
		w := &waiting[i]
		awaited[w.Registry] = awaited[w.Registry] || w.Reason != ReasonPropagation
	}
	for _, t := range ix.targets() {
		if !awaited[t.Registry] || !ix.follows(t) || ix.Registries[t.Registry].Err != nil {
			continue
		}
		again := ix.Followed[t].Again
		if !again.After(ix.Now) {
			again = ix.Now.Add(FollowEvery)
		}
		next = list.Earliest(next, again)
	}
	return next
}

// nobodyThere reports whether an error means that nobody is called through a target that Usher does not write. That
// nobody was before this pass confirms nothing.
func (ix *index) nobodyThere(t Target, err error) bool {
	return !ix.writesTo(t) && errors.Is(err, registry.ErrNoService) && !ix.Followed[t].Stale
}

// unasked reports whether an error means that a target was not asked in this pass.
func (ix *index) unasked(t Target, err error) bool {
	return errors.Is(err, errNotListed) || errors.Is(err, registry.ErrNoService) && ix.Followed[t].Stale
}
