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

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// ErrRateLimited is why a change was not made that spec.rateLimit puts off.
var ErrRateLimited = errors.New("its turn has not come: spec.rateLimit of the Registry")

// Waiting is one Pod that waits at a gate, for one registry.
type Waiting struct {
	// Registration that waits for the registry.
	Registration string
	// Pod is the one that waits.
	Pod string
	// Gate and Key say what holds it; Key is a label key or a finalizer.
	Gate Gate
	Key  string
	// Registry is the one that has to confirm; empty while the Pod itself is
	// not ready.
	Registry string
	// Reason is one of the constants of this package, Message for people.
	Reason  Reason
	Message string
	// Since is when the wait began; zero if the Pod does not tell.
	Since time.Time
	// Overdue says that the deadline has gone by, and the policy is Block.
	Overdue bool
}

// answer is what the Registrations say to a hook.
type answer struct {
	// waiting is empty when the hook can be released.
	waiting []Waiting
	// next is when the answer may change without an event, zero for never.
	next time.Time
	// forced names the registries that were given up at the deadline.
	forced []string
	// waits are how long each registry held the hook.
	waits []RegistryWait
}

func (a *answer) done() bool { return len(a.waiting) == 0 }

func (a *answer) at(t time.Time) { a.next = Earlier(a.next, t) }

// Earlier returns the earlier of two times; either may be unset.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// join answers a hook that opens when every registry lists the Pod.
func (w *world) join(s *subject, h hook) answer {
	var a answer
	since := s.stateSince()
	if at := readySince(s.pod); at.After(since) {
		since = at
	}
	for _, m := range h.members {
		base := Waiting{Registration: m.name, Pod: s.pod.Name, Gate: h.gate, Key: h.hold.key, Since: since}
		if serves, why := s.serves(m); !serves {
			a.waiting = append(a.waiting, base.because(ReasonPodNotReady, why))
			continue
		}
		limit := limitOf(m.registration, h.gate)
		end := limit.end(since)
		base.Overdue = missed(end, w.Now)
		if !base.Overdue {
			a.at(end)
		}
		for _, missing := range m.missing {
			base.Registry = missing.name
			a.wait(base.because(missing.reason, missing.message(w.Namespace)), limit)
		}
		for _, place := range m.current {
			base.Registry = place.Registry
			if wait, listed := w.joined(m, place, s, base); listed {
				a.waits = append(a.waits, RegistryWait{place.Registry, elapsed(since, w.Now)})
			} else {
				a.wait(wait, limit)
			}
		}
	}
	return a.settled()
}

// joined explains a place that does not list the Pod, or may not.
func (w *world) joined(m *member, place Place, s *subject, base Waiting) (wait Waiting, listed bool) {
	p := w.presence(m, place, s)
	switch {
	case p.err != nil:
		return base.unknown(p.err), false
	case p.current:
		return base, true
	case p.cause != nil:
		return base.unknown(p.cause), false
	}
	return base.because(p.reason, joinMessage(p, place, s, m)), false
}

// wait adds a wait, or gives the registry up if the deadline has gone by.
func (a *answer) wait(wait Waiting, limit limit) {
	if wait.Overdue && limit.proceed {
		a.forced = append(a.forced, wait.Registry)
		return
	}
	a.waiting = append(a.waiting, wait)
}

// settled is the answer without a time to look again, if there is no need.
func (a *answer) settled() answer {
	if a.done() {
		a.next = time.Time{}
	}
	return *a
}

func elapsed(since, now time.Time) time.Duration {
	if since.IsZero() {
		return 0
	}
	return max(now.Sub(since), 0)
}

// leave answers a hook that opens when no registry lists the Pod any more and
// callers have had time to hear of it. It notes in the record what it saw. Members
// that the Pod has left hold it as well, whether they answered the hook or not: they
// are on their way out, and what they answered may be known no more.
func (w *world) leave(s *subject, h hook, record *Record) answer {
	var a answer
	for _, m := range slices.Concat(h.members, s.left()) {
		if m.stays(h) {
			continue
		}
		base := Waiting{
			Registration: m.name, Pod: s.pod.Name, Gate: h.gate, Key: h.hold.key, Since: record.Began,
		}
		limit := limitOf(m.registration, h.gate)
		end := limit.end(record.Began)
		base.Overdue = missed(end, w.Now)
		if !base.Overdue {
			a.at(end)
		}
		for _, place := range m.places() {
			base.Registry = place.Registry
			wait, free := w.left(m, place, s, record, base)
			if free == nil {
				a.waits = append(a.waits, RegistryWait{place.Registry, elapsed(record.Began, wait.Since)})
				continue
			}
			a.wait(wait, limit)
			a.at(*free)
		}
	}
	return a.settled()
}

// left says whether the member's entries of the Pod have been gone from the
// place for long enough: free is nil then, and wait.Since when they went. Else
// free is when they may be, zero if that is not known.
func (w *world) left(m *member, place Place, s *subject, record *Record, base Waiting) (wait Waiting, free *time.Time) {
	key := m.name + "@" + place.String()
	p := w.presence(m, place, s)
	if wait, left := base.unlessLeft(p); !left {
		if p.err == nil {
			delete(record.Gone, key)
		}
		return wait, &time.Time{}
	}
	gone, seen := record.Gone[key]
	if !seen {
		var ever bool
		if gone, ever = w.goneSince(s); !ever {
			base.Since = w.Now
			return base, nil
		}
		record.Gone[key] = gone
	}
	away := w.Registries[place.Registry].Outage
	end, late := away.heard(gone, propagation(m.registration), afterOutage(m.registration), w.Now)
	switch {
	case !w.Now.Before(end):
		base.Since = gone
		return base, nil
	case late:
		return base.because(ReasonReconnecting, fmt.Sprintf(
			"callers of Registry %s may hear of it as late as %s, since they have to find the registry again: it %s",
			place.Registry, end.UTC().Format(time.RFC3339), away)), &end
	}
	return base.because(ReasonPropagation, fmt.Sprintf("callers of Registry %s may still use it until %s",
		place.Registry, end.Format(time.RFC3339))), &end
}

// goneSince is since when a Pod is gone that nobody has seen go: since now, or since
// it was let go. Without the finalizer, and without having told that it was let go,
// nothing was ever written for it: nobody can have it in a cache.
func (w *world) goneSince(s *subject) (gone time.Time, ever bool) {
	c := condition(s.pod, usherv1alpha1.ConditionRegistered)
	switch {
	case s.finalized():
	case c == nil || c.Status == corev1.ConditionUnknown:
		return time.Time{}, false
	case c.Status == corev1.ConditionFalse:
		// Times in a status have whole seconds.
		return Earlier(w.Now, c.LastTransitionTime.Add(time.Second)).UTC(), true
	}
	return w.Now.UTC(), true
}

// gone says whether none of the places lists the Pod, and if not, what is in
// the way, per member.
func (w *world) gone(s *subject, members []*member) answer {
	var a answer
	since, gate, terminating := deletionSince(s), GateLeaving, s.pod.DeletionTimestamp != nil
	if terminating {
		gate = GateDeletion
	}
	for _, m := range members {
		limit := limitOf(m.registration, gate)
		end := limit.end(since)
		base := Waiting{Registration: m.name, Pod: s.pod.Name, Gate: gate, Since: since, Overdue: missed(end, w.Now)}
		if !base.Overdue {
			a.at(end)
		}
		for _, place := range m.places() {
			base.Registry = place.Registry
			if wait, left := base.unlessLeft(w.presence(m, place, s)); left {
				a.waits = append(a.waits, RegistryWait{place.Registry, elapsed(since, w.Now)})
			} else {
				a.wait(wait, limit)
			}
		}
	}
	return a
}

// unlessLeft explains a place that lists a Pod, or that may.
func (w Waiting) unlessLeft(p presence) (wait Waiting, left bool) {
	switch {
	case p.err != nil:
		return w.unknown(p.err), false
	case p.listed:
		return w.stillListed(p), false
	}
	return w, true
}

// deletionSince is when somebody asked for the Pod's deletion: its timestamp is
// when the grace period ends.
func deletionSince(s *subject) time.Time {
	if s.pod.DeletionTimestamp == nil {
		return time.Time{}
	}
	grace := int64(0)
	if s.pod.DeletionGracePeriodSeconds != nil {
		grace = *s.pod.DeletionGracePeriodSeconds
	}
	return s.pod.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
}

func (w Waiting) because(reason Reason, message string) Waiting {
	w.Reason, w.Message = reason, message
	return w
}

// unknown explains a registry that could not be listed.
func (w Waiting) unknown(err error) Waiting {
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
	case errors.Is(err, registry.ErrPermanent):
		return ReasonRegistryRefuses
	}
	return ReasonRegistryUnavailable
}

// stillListed explains an entry that has not gone.
func (w Waiting) stillListed(p presence) Waiting {
	if p.cause != nil {
		return w.unknown(p.cause)
	}
	if p.unsettled != "" {
		return w.because(ReasonDraining, fmt.Sprintf("Registry %s: %s", w.Registry, p.unsettled))
	}
	return w.because(ReasonStillListed, fmt.Sprintf("Registry %s still lists it", w.Registry))
}

func (m missingRegistry) message(namespace string) string {
	if m.reason == ReasonRegistryNotAllowed {
		return fmt.Sprintf("Registry %s is not for namespace %s: widen its spec.namespaces, or take it out of spec.registries",
			m.name, namespace)
	}
	if m.leaving {
		return fmt.Sprintf("Registry %s is being deleted: take it out of spec.registries", m.name)
	}
	return fmt.Sprintf("there is no Registry %q: create it, or take it out of spec.registries", m.name)
}

func joinMessage(p presence, place Place, s *subject, m *member) string {
	switch p.reason {
	case ReasonPortNotFound:
		return fmt.Sprintf("no container of it has a port named %q: correct spec.instance.port", m.registration.Spec.Instance.Port.StrVal)
	case ReasonForeignEntry:
		return fmt.Sprintf("Registry %s has an entry %s of somebody else for service %s: remove that one",
			place.Registry, s.id, place.Service)
	case ReasonDuplicate:
		return fmt.Sprintf("another Registration puts it into service %s of Registry %s: give them different services",
			place.Service, place.Registry)
	}
	if p.unsettled != "" {
		return fmt.Sprintf("Registry %s: %s", place.Registry, p.unsettled)
	}
	return fmt.Sprintf("Registry %s does not list it yet", place.Registry)
}

func compareWaiting(a, b Waiting) int {
	return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(string(a.Gate), string(b.Gate)),
		strings.Compare(a.Key, b.Key), strings.Compare(a.Registration, b.Registration),
		strings.Compare(a.Registry, b.Registry))
}

func sortWaits(waits []RegistryWait) {
	slices.SortFunc(waits, func(a, b RegistryWait) int { return compareStrings(a.Registry, b.Registry) })
}
