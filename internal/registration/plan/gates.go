// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// ErrRateLimited is why a change was not made that spec.rateLimit postpones.
var ErrRateLimited = errors.New("its turn has not come: spec.rateLimit of the Registry")

// Waiting is one Pod that waits at a gate, for one registry.
type Waiting struct {
	// Registration that waits for the registry.
	Registration string
	// Pod is the one that waits.
	Pod string
	// Gate and Key are what holds it; Key is a label key or a finalizer.
	Gate Gate
	Key  string
	// Registry is the one that has to confirm; empty while the Pod itself is not ready.
	Registry string
	// Reason is one of the constants of this package, Message is for people.
	Reason  Reason
	Message string
	// Since is when the wait began; zero if the Pod does not show it.
	Since time.Time
	// Overdue means that the deadline has passed and the policy is Block; lapsed, that it is
	// Proceed.
	Overdue, lapsed bool
}

// verdict is whether a Pod may pass a gate, or what it waits for.
type verdict struct {
	// waiting is empty when the Pod may pass.
	waiting []Waiting
	// next is when the verdict may change without an event, zero for never. It is of no interest
	// if the Pod may pass.
	next time.Time
	// forced names the registries that were given up at the deadline.
	forced []string
	// waits are how long each registry held the hook.
	waits []RegistryWait
	// asks are what the Pod is to be asked; busy are the Registrations that let it go at their timeout.
	asks []Ask
	busy []busyPod
}

func (v verdict) passes() bool { return len(v.waiting) == 0 }

// wait adds a wait, or gives the registry up if the deadline has passed.
func (v *verdict) wait(wait Waiting) {
	if wait.lapsed {
		v.forced = append(v.forced, wait.Registry)
		return
	}
	v.waiting = append(v.waiting, wait)
}

// confirmed adds how long a registry held the hook that holds it no more.
func (v *verdict) confirmed(registry string, since, until time.Time) {
	wait := RegistryWait{Registry: registry}
	if !since.IsZero() {
		wait.Wait = max(until.Sub(since), 0)
	}
	v.waits = append(v.waits, wait)
}

// join decides on a hook that opens when every registry lists the Pod.
func (ix *index) join(p *pod, h hook) verdict {
	var v verdict
	since := p.waitsSince(h.gate)
	for _, r := range h.answerers {
		base := Waiting{Registration: r.Name, Pod: p.Name, Gate: h.gate, Key: h.key.name, Since: since}
		if why := p.unfit(r); why != "" {
			v.waiting = append(v.waiting, base.because(ReasonPodNotReady, why))
			continue
		}
		ix.limit(r, &base, &v)
		for _, missing := range r.missing {
			base.Registry = missing.Registry
			v.wait(base.because(missing.Reason, missing.Message))
		}
		for _, t := range r.current {
			base.Registry = t.Registry
			if wait, listed := ix.joined(r, t, p, base); listed {
				v.confirmed(t.Registry, since, ix.Now)
			} else {
				v.wait(wait)
			}
		}
	}
	return v
}

// limit notes whether the wait for a Registration has reached its deadline, or when it will.
func (ix *index) limit(r *registration, wait *Waiting, v *verdict) {
	limit := limitOf(r.Registration, wait.Gate)
	switch end := limit.end(wait.Since); {
	case end.IsZero():
	case ix.Now.Before(end):
		v.next = list.Earliest(v.next, end)
	default:
		wait.Overdue = limit.policy == usherv1alpha1.DeadlineBlock
		wait.lapsed = !wait.Overdue
	}
}

// joined explains a target that does not list the Pod, or may not.
func (ix *index) joined(r *registration, t Target, p *pod, base Waiting) (wait Waiting, listed bool) {
	found := ix.presence(r, t, p)
	switch {
	case found.err != nil && found.reason == "":
		return base.failed(found.err), false
	case found.current:
		return base, true
	case found.cause != nil:
		return base.failed(found.cause), false
	}
	return base.because(found.reason, ix.joinMessage(found, t, p, r)), false
}

// leave decides on a hook that opens when no registry lists the Pod any more and callers
// have had time to notice. It notes in the record what it saw. Registrations that have
// deselected the Pod hold it as well, whether they answered the hook or not: the Pod is on
// its way out there, and nobody knows any more what they answered.
func (ix *index) leave(p *pod, h hook, record *Record) verdict {
	var v verdict
	before := record.Until
	record.Until, record.Open = time.Time{}, false
	for _, r := range slices.Concat(h.answerers, p.deselected()) {
		if h.gate == GateInPlaceUpdate && r.Spec.OnInPlaceUpdate == usherv1alpha1.InPlaceUpdateStay {
			continue
		}
		base := Waiting{Registration: r.Name, Pod: p.Name, Gate: h.gate, Key: h.key.name, Since: record.Began}
		ix.limit(r, &base, &v)
		for _, t := range r.targets() {
			if !ix.holds(r, t, p, h) {
				continue
			}
			base.Registry = t.Registry
			wait, free := ix.drained(r, t, p, record, base)
			if free == nil {
				v.confirmed(t.Registry, record.Began, wait.Since)
				continue
			}
			r.awaited[t] = true
			v.wait(wait)
			v.next = list.Earliest(v.next, *free)
			record.Open = record.Open || free.IsZero()
			record.Until = list.Latest(record.Until, *free)
		}
	}
	ix.holdUntil(before, p, h, record, &v)
	ix.awaitIdle(p, h, record, &v)
	ix.awaitRequest(p, h, &v)
	return v
}

// maxNamesShown bounds what a wait repeats of the names of Registrations that are gone, in bytes.
const maxNamesShown = 253

// holdUntil keeps what the record has promised, although the Registrations that are left need
// less time: one that has vanished, with its own propagation, or a Registry that is gone.
func (ix *index) holdUntil(promised time.Time, p *pod, h hook, record *Record, v *verdict) {
	if !ix.Now.Before(promised) || !record.Until.Before(promised) {
		return
	}
	names := Shorten(strings.Join(p.names, ","), maxNamesShown)
	base := Waiting{Registration: names, Pod: p.Name, Gate: h.gate, Key: h.key.name, Since: record.Began}
	v.waiting = append(v.waiting, base.because(ReasonPropagation, "callers may still use it until "+promised.Format(time.RFC3339)))
	v.next = list.Earliest(v.next, promised)
	record.Until = promised
}

// drained reports whether the Registration's entries of the Pod have been gone from the
// target for long enough: then free is nil, and wait.Since is when they went. Otherwise
// free is when they may be, zero if that is not known.
func (ix *index) drained(r *registration, t Target, p *pod, record *Record, base Waiting) (wait Waiting, free *time.Time) {
	key := recordKey(r.Name, t)
	if ix.Left[t][string(p.UID)] {
		record.returned(key)
	}
	found := ix.presence(r, t, p)
	if wait, gone := ix.unlessGone(base, found, t); !gone && !ix.leavesToUntil(r, t, found, record) {
		if found.err == nil {
			record.returned(key)
		}
		if end, ends := ix.stillGone(r, t, key, record); ends && ix.unasked(t, found.err) {
			return base.stillUsed(t, end), &end
		}
		return wait, &time.Time{}
	}
	gone, seen := record.Gone[key]
	if !seen {
		var ever bool
		if gone, ever = ix.goneSince(p, t, found); !ever {
			base.Since = ix.Now
			return base, nil
		}
		record.Gone[key] = gone
	}
	outage := ix.Registries[t.Registry].Outage // none of followed ones: callers do not ask there
	end, late := outage.heard(gone, propagation(r.Registration), afterOutage(r.Registration), ix.Now)
	switch {
	case !ix.Now.Before(end):
		base.Since = gone
		return base, nil
	case late:
		return base.because(ReasonReconnecting, fmt.Sprintf(
			"callers of Registry %s may learn of it as late as %s, because they have to reconnect first: the registry %s",
			t.Registry, end.UTC().Format(time.RFC3339), outage)), &end
	}
	return base.stillUsed(t, end), &end
}

// returned notes that a target has the Pod that was gone: callers choose it again.
func (r *Record) returned(key string) {
	delete(r.Gone, key)
	r.Free = time.Time{}
}

// stillGone is until when callers may use a Pod that a followed target did not have when it was last asked; false if
// they had their time, and the target is to be asked.
func (ix *index) stillGone(r *registration, t Target, key string, record *Record) (end time.Time, ends bool) {
	gone, seen := record.Gone[key]
	end = gone.Add(propagation(r.Registration))
	return end, seen && ix.follows(t) && ix.Now.Before(end)
}

func (w Waiting) stillUsed(t Target, until time.Time) Waiting {
	return w.because(ReasonPropagation, fmt.Sprintf("callers of Registry %s may still use it until %s",
		t.Registry, until.Format(time.RFC3339)))
}

// goneSince is since when a Pod is gone that nobody saw go: since now. Its condition does not
// tell: it is False from when the first of several registries does not list the Pod. A Pod
// without the finalizer and without a condition never had an entry, so no caller can have it
// in a cache, unless its application wrote that entry itself.
func (ix *index) goneSince(p *pod, t Target, found presence) (gone time.Time, ever bool) {
	switch {
	case found.let:
		return time.Time{}, false
	case found.wrote:
		return ix.Now.UTC(), true
	case ix.gated(t):
		return ix.goneFromService(p, t), true
	case ix.follows(t):
		return ix.Now.UTC(), true
	}
	if !p.hasFinalizer() && podread.Status(p.Pod, usherv1alpha1.ConditionRegistered) == corev1.ConditionUnknown {
		return time.Time{}, false
	}
	return ix.Now.UTC(), true
}

// gone reports whether no target of the Registrations lists the Pod, and if not, why. Services
// and followed targets need no care: Kubernetes takes a terminating Pod out of its Services.
func (ix *index) gone(p *pod, registrations ...*registration) verdict {
	var v verdict
	gate, since := GateLeaving, podread.DeletedSince(p.Pod)
	if p.DeletionTimestamp != nil {
		gate = GateDeletion
	}
	for _, r := range registrations {
		base := Waiting{Registration: r.Name, Pod: p.Name, Gate: gate, Since: p.goesSince()}
		ix.limit(r, &base, &v)
		for _, t := range r.targets() {
			if !ix.writesTo(t) {
				continue
			}
			base.Registry = t.Registry
			if wait, gone := ix.unlessGone(base, ix.presence(r, t, p), t); gone {
				v.confirmed(t.Registry, since, ix.Now)
			} else {
				v.wait(wait)
			}
		}
	}
	return v
}

// unlessGone explains a target that lists a Pod, or that may.
func (ix *index) unlessGone(w Waiting, found presence, t Target) (wait Waiting, gone bool) {
	switch {
	case found.absent:
		return w, true
	case found.err != nil:
		return w.failed(found.err), false
	case !found.listed:
		return w, true
	case found.inService == nil:
		return w.stillListed(found), false
	case !found.steered:
		return ix.unsteered(w, found.inService, t), false
	}
	return w.because(ReasonStillListed, ix.stage(found.inService, t, false)), false
}

func (w Waiting) because(reason Reason, message string) Waiting {
	w.Reason, w.Message = reason, message
	return w
}

// failed explains a registry that could not be listed or changed.
func (w Waiting) failed(err error) Waiting {
	reason := ReasonOf(err)
	if reason == ReasonRateLimited {
		return w.because(reason, fmt.Sprintf("%v %s", err, w.Registry))
	}
	return w.because(reason, fmt.Sprintf("Registry %s: %v", w.Registry, err))
}

// ReasonOf is the reason for a wait that an error of a registry causes.
func ReasonOf(err error) Reason {
	switch {
	case errors.Is(err, ErrRateLimited):
		return ReasonRateLimited
	case errors.Is(err, errNotListed):
		return ReasonNotAsked
	case errors.Is(err, registry.ErrNoService):
		return ReasonServiceNotFound
	case errors.Is(err, registry.ErrCopied):
		return ReasonClusterCopied
	case errors.Is(err, registry.ErrPermanent):
		return ReasonRegistryRefuses
	}
	return ReasonRegistryUnavailable
}

// stillListed explains an entry that has not gone.
func (w Waiting) stillListed(found presence) Waiting {
	if found.cause != nil {
		return w.failed(found.cause)
	}
	if found.unsettled != "" {
		return w.because(ReasonDraining, fmt.Sprintf("Registry %s: %s", w.Registry, found.unsettled))
	}
	if found.let {
		return w.because(ReasonStillListed, fmt.Sprintf("Registry %s still keeps callers from it: Usher's override is not off yet", w.Registry))
	}
	if found.why != "" {
		return w.because(ReasonStillListed, fmt.Sprintf("Registry %s still lists it: %s", w.Registry, found.why))
	}
	return w.because(ReasonStillListed, fmt.Sprintf("Registry %s still lists it", w.Registry))
}

// joinMessage is why a target does not list the Pod, and what to do about it.
func (ix *index) joinMessage(found presence, t Target, p *pod, r *registration) string {
	if ix.overrides(r, t) && !r.mayNot(t) {
		return ix.applicationMessage(found, t, p, r)
	}
	switch found.reason {
	case ReasonServiceTaken, ReasonServiceNotAllowed, ReasonRegistryFull:
		return r.refused[t].message
	case ReasonPortNotFound:
		if r.Spec.Instance.Port == (intstr.IntOrString{}) {
			return fmt.Sprintf("Registry %s needs a port: set spec.instance.port", t.Registry)
		}
		return fmt.Sprintf("no container of it has a port named %q: correct spec.instance.port", r.Spec.Instance.Port.StrVal)
	case ReasonAddressNotFound:
		return fmt.Sprintf("it has no %s address: the cluster's network gives it none; correct spec.instance.ipFamily",
			r.Spec.Instance.IPFamily)
	case ReasonForeignEntry:
		return fmt.Sprintf("Registry %s has an entry %s of somebody else for service %s: remove that one",
			t.Registry, p.id, t.Service)
	case ReasonDuplicate:
		return fmt.Sprintf("another Registration puts it into service %s of Registry %s: give them different services",
			t.Service, t.Registry)
	}
	return ix.notListedMessage(found, t, p)
}

// notListedMessage is what is known of a Pod that may join a target, and that it does not list.
func (ix *index) notListedMessage(found presence, t Target, p *pod) string {
	switch {
	case found.why != "" && ix.follows(t):
		return fmt.Sprintf("Registry %s: %s", t.Registry, found.why)
	case found.why != "":
		return found.why
	case found.inService != nil:
		return ix.stage(p, t, true)
	case found.unsettled != "":
		return fmt.Sprintf("Registry %s: %s", t.Registry, found.unsettled)
	}
	return fmt.Sprintf("Registry %s does not list it yet", t.Registry)
}

// CompareWaiting orders waits by Pod, gate, key, Registration and registry.
func CompareWaiting(a, b Waiting) int {
	return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(string(a.Gate), string(b.Gate)),
		strings.Compare(a.Key, b.Key), strings.Compare(a.Registration, b.Registration),
		strings.Compare(a.Registry, b.Registry))
}
