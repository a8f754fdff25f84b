// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// With registeredBy: Application, applications write their own entries. An entry belongs to the Pod whose address
// and port it has. Usher writes none: it waits until the entry is in service, takes it out of service by an
// override when the Pod leaves, and takes the override off when the Pod stays. Nothing is recorded of an override:
// what the registry lists is compared with what the Pod's state asks for, in each pass. See
// docs/design/0013-self-registered.md.

// byApplication reports whether the applications of the Registration's Pods register themselves.
func (r *registration) byApplication() bool {
	return r.Spec.Instance.RegisteredBy == usherv1alpha1.RegisteredByApplication
}

// overrides reports whether Usher overrides entries of the Registration's applications in a target.
func (ix *index) overrides(r *registration, t Target) bool {
	return r.byApplication() && ix.writesTo(t)
}

// unsuited is why a Registry cannot be used by the Registration; empty if it can.
func (s RegistryState) unsuited(r *registration, name string) string {
	if !r.byApplication() || s.Gated || s.Follows || s.Overrides || r.asks() {
		return ""
	}
	return fmt.Sprintf("Registry %s is of a kind where Usher cannot take out what applications register: take it out of "+
		"spec.registries and use a Registry of the kind %s, or set spec.drain.application to ask the application itself",
		name, overridingKinds)
}

// overridingKinds are the kinds with the property Overrides, for messages.
const overridingKinds = "eureka or nacos, or consul with spec.consul.agents"

// nameIn is how people find the Registration's entry of a Pod: by its ID, or what an application registers by its
// address and port.
func (ix *index) nameIn(r *registration, p *pod) string {
	if want := ix.entry(r, p); r.byApplication() && incomplete(&want) == "" {
		return want.HostPort()
	}
	return p.id
}

// placeKey is the key, in a listing, of entries that Usher did not write. Registries write one address in
// different ways.
func placeKey(address string, port int32) types.UID {
	if ip, err := netip.ParseAddr(address); err == nil {
		address = ip.Unmap().String()
	}
	return types.UID("@" + net.JoinHostPort(address, strconv.Itoa(int(port))))
}

// places are where the Pod's application registers itself. It has none if nobody can tell whose an entry there is,
// and noPlace says why.
func (ix *index) places(r *registration, p *pod) (places []types.UID) {
	if reason, _ := ix.noPlace(r, p); reason != "" {
		return nil
	}
	port := portOf(p.Pod, r.Spec.Instance.Port)
	return list.Map(addressesIn(p.Pod, r.Spec.Instance.IPFamily), func(address string) types.UID { return placeKey(address, port) })
}

// addressesIn are the Pod's addresses of a family, all of them if the family is empty.
func addressesIn(pod *corev1.Pod, family corev1.IPFamily) []string {
	if family == "" {
		return addressesOf(pod)
	}
	return list.Only([]string{addressOf(pod, family)}, func(address string) bool { return address != "" })
}

// noPlace is why no entry is the Pod's, in words, too; empty if entries may be. Pods in their node's network share
// its address, and whoever may write a Registration may write any port. An address whose Pod has ended may be that
// of another Pod, of any namespace.
func (ix *index) noPlace(r *registration, p *pod) (Reason, string) {
	switch {
	case p.Status.PodIP != "" && p.Status.PodIP == p.Status.HostIP:
		return ReasonAddressShared, "it is in its node's network, and entries do not say which Pod of the node theirs is: " +
			"run it without hostNetwork, or use registeredBy: Usher"
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return ReasonAddressShared, "its containers have ended, and another Pod may have its address"
	case portOf(p.Pod, r.Spec.Instance.Port) == 0:
		return ReasonPortNotFound, fmt.Sprintf("no container of it has a port named %q: correct spec.instance.port", r.Spec.Instance.Port.StrVal)
	case len(addressesIn(p.Pod, r.Spec.Instance.IPFamily)) == 0:
		return ReasonAddressNotFound, "it has no address of the family in spec.instance.ipFamily"
	}
	for _, address := range addressesOf(p.Pod) {
		if other := ix.holder(p, address); other != "" {
			return ReasonAddressShared, fmt.Sprintf("Pod %s has the address %s as well, so that nobody knows whose an entry there is", other, address)
		}
	}
	return "", ""
}

// holder is another Pod of the namespace with an address of this one, unless it has ended; empty if there is none.
func (ix *index) holder(p *pod, address string) string {
	for _, other := range ix.byAddress()[address] {
		if other != p {
			return other.Name
		}
	}
	return ""
}

// byAddress are the Pods that may have each address.
func (ix *index) byAddress() map[string][]*pod {
	if ix.holders == nil {
		ix.holders = map[string][]*pod{}
		for _, p := range ix.pods {
			if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				continue
			}
			for _, address := range addressesOf(p.Pod) {
				ix.holders[address] = append(ix.holders[address], p)
			}
		}
	}
	return ix.holders
}

// ofApplication are the entries that the Pod's application has written.
func (ix *index) ofApplication(r *registration, p *pod, listed *targetListing) (entries []*registry.Entry) {
	for _, place := range ix.places(r, p) {
		entries = append(entries, listed.ByOwner(place)...)
	}
	return entries
}

// stand is what a Pod's state asks of its application's entries.
type stand int

const (
	// standsIn: no override keeps callers away.
	standsIn stand = iota
	// standsAside: whatever is there stays.
	standsAside
	// standsOut: an override keeps callers away.
	standsOut
)

// standOf does not ask whether the Pod is ready: the application says that to the registry itself. A Pod that goes
// stays out although its Registration is being deleted as well: its hook may have let it go by now.
func (ix *index) standOf(r *registration, p *pod) stand {
	switch {
	case p.DeletionTimestamp != nil, p.requested(), p.state == appsv1alpha1.StatePreparingDelete:
		return standsOut
	case !slices.Contains(p.selectedBy, r), p.unfit(r) == "":
		return standsIn
	case !p.updating():
		return standsIn
	case r.Spec.OnInPlaceUpdate == usherv1alpha1.InPlaceUpdateStay:
		return standsAside
	}
	return standsOut
}

// desiredOfApplication is what the Registration wants of the entries of a Pod's application.
func (ix *index) desiredOfApplication(r *registration, p *pod) desired {
	switch stand := ix.standOf(r, p); {
	case stand == standsOut:
		return absent
	case stand == standsIn && slices.Contains(p.selectedBy, r) && p.unfit(r) == "":
		return present
	}
	return unchanged
}

// step is what one entry of an application needs.
type step struct {
	stand stand
	entry registry.Entry
	// why is why its Pod leaves; returns means that callers may get it again.
	why     string
	returns bool
	// call asks the application itself; nil if the registry makes the change.
	call *Call
}

// op is the change that the entry needs; empty if it needs none.
func (s *step) op() registry.Op {
	switch {
	case s.stand == standsOut && (s.call != nil || !s.entry.Override):
		return registry.TakeOut
	case s.stand == standsIn && (s.call != nil || s.entry.Override && s.returns):
		return registry.BringBack
	}
	return ""
}

// override plans the overrides of a target.
func (ix *index) override(listed *targetListing, c *Changes) {
	for _, s := range ix.stepsOf(listed, c.Target) {
		change := registry.Change{Op: s.op(), Entry: s.entry}
		switch change.Op {
		case registry.TakeOut:
			c.Leaves = append(c.Leaves, change)
			c.Reasons[s.entry.ID] = cmp.Or(s.why, "its Pod leaves")
		case registry.BringBack:
			c.Joins = append(c.Joins, change)
			c.Reasons[s.entry.ID] = "its Pod stays, and callers do not get it"
		default:
			continue
		}
		if s.call != nil {
			c.Calls[s.entry.ID] = *s.call
		}
	}
	byID := func(a, b registry.Change) int { return strings.Compare(a.Entry.ID, b.Entry.ID) }
	slices.SortFunc(c.Leaves, byID)
	slices.SortFunc(c.Joins, byID)
}

// stepsOf are the entries of a target that applications have written, by ID. Of several Registrations that look at
// one entry, one that takes it out prevails.
func (ix *index) stepsOf(listed *targetListing, t Target) map[string]step {
	steps := map[string]step{}
	for _, r := range ix.registrations {
		if !ix.overrides(r, t) || !slices.Contains(r.targets(), t) {
			continue
		}
		for _, p := range ix.podsOf(r) {
			if p.idle != nil {
				continue
			}
			for _, s := range ix.stepsOfPod(r, t, p, listed) {
				if before, planned := steps[s.entry.ID]; !planned || before.stand < s.stand {
					steps[s.entry.ID] = s
				}
			}
		}
	}
	return steps
}

// stepsOfPod are those of one Pod's entries, which go by its name from here on.
func (ix *index) stepsOfPod(r *registration, t Target, p *pod, listed *targetListing) []step {
	if r.asks() {
		return ix.stepsOfAsked(r, t, p, listed)
	}
	stand := ix.standOf(r, p)
	if stand == standsOut && r.mayNot(t) {
		stand = standsAside
	}
	return list.Map(ix.ofApplication(r, p, listed), func(e *registry.Entry) step {
		s := step{stand: stand, entry: *e, why: p.unfit(r), returns: ix.mayReturn(r, p)}
		s.entry.Owner = ix.entry(r, p).Owner
		return s
	})
}

// mayReturn reports whether an override of the Pod's entries may be taken off: a Pod that callers may use from
// then on must be protected before, so that the guard holds whoever deletes it. A new Pod that is not ready
// does not wait for that: the override is of whoever had its address before.
func (ix *index) mayReturn(r *registration, p *pod) bool {
	return p.protected() || !slices.Contains(p.selectedBy, r) || p.unfit(r) != "" && p.isNew()
}

// isNew reports whether nothing was ever said about the Pod and its registries.
func (p *pod) isNew() bool {
	return podread.Status(p.Pod, usherv1alpha1.ConditionRegistered) == corev1.ConditionUnknown
}

// mayNot reports whether rules of the Registry keep the namespace out of the service.
func (r *registration) mayNot(t Target) bool { return r.refused[t] != nil && r.refused[t].reason != "" }

// podsOf are the Pods of a Registration, and those that it had.
func (ix *index) podsOf(r *registration) []*pod {
	return list.Only(ix.pods, func(p *pod) bool { return slices.Contains(p.selectedBy, r) || slices.Contains(p.former, r) })
}

// presenceOfApplication looks for the entries of the Pod's application.
func (ix *index) presenceOfApplication(r *registration, t Target, p *pod, listed *targetListing) presence {
	found := ix.presenceOfPlaces(r, t, p, listed)
	if r.asks() {
		found = ix.presenceOfAsked(r, t, p, listed)
	}
	switch no := r.refused[t]; {
	case r.mayNot(t): // as with entries of Usher's own, a rule that comes later stops new Pods
		found.reason, found.why, found.listed = no.reason, "", false
		found.current = found.current && podread.IsTrue(p.Pod, usherv1alpha1.ConditionRegistered)
	case !slices.Contains(p.selectedBy, r) && ix.standOf(r, p) == standsIn:
		found.listed, found.let = found.overridden, true
	}
	if reason, why := ix.noPlace(r, p); reason != "" {
		found.reason, found.why = reason, why
	}
	found.serving = found.current
	return found
}

// presenceOfPlaces is what a target lists where the Pod's application registers itself. A Pod is listed as long as
// an entry of it is not overridden, even if its application says that it is not ready: that may change at any time.
func (ix *index) presenceOfPlaces(r *registration, t Target, p *pod, listed *targetListing) presence {
	found := presence{reason: ReasonNotRegistered}
	for _, e := range ix.ofApplication(r, p, listed) {
		found.reason, found.wrote = ReasonNotInService, true
		found.cause = cmp.Or(found.cause, ix.failure(t, e.ID))
		found.overridden = found.overridden || e.Override
		found.listed = found.listed || !e.Override
		found.current = found.current || e.Weight > 0 && e.Unsettled == "" && !e.Override
		found.why = cmp.Or(found.why, e.Unsettled, e.Hidden)
	}
	found.current = found.current && !found.overridden
	return found
}

// applicationMessage is why an application's entry is not in service, and what to look at.
func (ix *index) applicationMessage(found presence, t Target, p *pod, r *registration) string {
	switch {
	case found.overridden && r.asks():
		return fmt.Sprintf("its application took itself out of service %s when Usher asked it to, and has not come back: "+
			"it is asked at %s", t.Service, ix.askedAt(r, p))
	case found.reason == ReasonNotRegistered:
		places := list.Map(addressesIn(p.Pod, r.Spec.Instance.IPFamily), func(address string) string {
			return net.JoinHostPort(address, strconv.Itoa(int(portOf(p.Pod, r.Spec.Instance.Port))))
		})
		return fmt.Sprintf("its application has not registered %s in service %s: look at its log, and at the address, port and name "+
			"that its client registers", strings.Join(places, " or "), t.Service)
	case found.reason == ReasonNotInService:
		unknown := "Usher's override is not off yet"
		if r.asks() {
			unknown = "the registry keeps callers from its entry, and Usher has not asked for that"
		}
		return fmt.Sprintf("its application is listed in service %s and gets no callers: %s",
			t.Service, cmp.Or(found.why, unknown))
	}
	return found.why
}

// calm is how often a target is listed for a Pod that waits for its application: less often the longer it waits.
func calm(waited time.Duration) time.Duration {
	return min(max(waited/calmShare, FollowEvery), maxCalm)
}

// calmShare is the part of its wait until a Pod looks again, and maxCalm is the longest pause.
const calmShare, maxCalm = 4, 10 * time.Second

// lookAgain is when to list again what applications write, as no event tells of it; zero if nobody waits for that. While
// callers may still use a Pod, a registry that forgets the override is noticed.
func (ix *index) lookAgain(waiting []Waiting) (next time.Time) {
	for i := range waiting {
		w := &waiting[i]
		r := named(ix.registrations, w.Registration)
		if r == nil || !r.byApplication() || w.Registry == "" || ix.Registries[w.Registry].Err != nil {
			continue
		}
		pause := FollowEvery
		switch {
		case w.Reason == ReasonPropagation:
			pause = maxCalm
		case !w.Since.IsZero():
			pause = calm(ix.Now.Sub(w.Since))
		}
		next = list.Earliest(next, ix.Now.Add(pause))
	}
	return next
}
