// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// An open gate does not bring a Pod into its Service: the Service has to select the Pod, and Kubernetes
// has to list it. This file finds Pods that are Ready with an open gate, and that their Service does not
// list. Such a Pod waits, and its condition says why. The condition stays True: a closed gate makes the
// Pod unready, and a Pod that is not Ready is never listed.

// listedAfter is how long a Service may take to list a Pod that is Ready, before the Pod counts as one
// that waits.
const listedAfter = 10 * time.Second

// Place is a Pod in a Service.
type Place struct {
	Target
	Pod types.UID
}

// Unlisted are the places where nobody has seen a Pod listed since it was last out of service, and since
// when. A pass hands them to the next one.
type Unlisted map[Place]time.Time

// unlistedReasons are those of a Pod with an open gate that its Service does not list.
var unlistedReasons = []Reason{ReasonSelectorMismatch, ReasonNoEndpoint, ReasonServiceNotFound}

// SaysUnlisted reports whether a Pod's condition says that the Service does not list the Pod, although its
// gate is open.
func SaysUnlisted(c *corev1.PodCondition) bool {
	return c != nil && slices.Contains(unlistedReasons, Reason(c.Reason))
}

// Reported reads the message of a Pod's condition about a wait, as summarize writes it.
func Reported(c *corev1.PodCondition) (registry string, since time.Time, detail string) {
	head, detail, _ := strings.Cut(c.Message, ": ")
	if _, after, found := strings.Cut(head, " since "); found {
		at, _, _ := strings.Cut(after, ",")
		since, _ = time.Parse(time.RFC3339, at) // Anybody may have written it.
	}
	if _, after, found := strings.Cut(head, registryInHead); found {
		registry, _, _ = strings.Cut(after, " ")
		registry = strings.TrimSuffix(registry, ",")
	}
	return registry, since, detail
}

// open is since when nothing but the Service keeps callers from a Pod that a Registration wants there;
// false if something else does.
func (ix *index) open(r *registration, t Target, p *pod) (since time.Time, yes bool) {
	if label, has := ix.labelled(t); has && p.Labels[label.Key] != label.Value {
		return time.Time{}, false
	}
	if p.DeletionTimestamp != nil || p.unfit(r) != "" || !podread.IsTrue(p.Pod, corev1.PodReady) ||
		p.gate && !podread.IsTrue(p.Pod, usherv1alpha1.ConditionRegistered) {
		return time.Time{}, false
	}
	since = podread.Since(p.Pod, corev1.PodReady)
	if p.gate {
		since = list.Latest(since, podread.Since(p.Pod, usherv1alpha1.ConditionRegistered))
	}
	return since, true
}

// unlistedSince is since when it has been known that a Service may not list a Pod: by an earlier pass, or by
// what another process has reported.
func (ix *index) unlistedSince(t Target, p *pod) (since time.Time, known bool) {
	if since, known = ix.Unlisted[Place{t, p.uid}]; known {
		return since, true
	}
	if p.reportsUnlisted {
		_, since, _ = Reported(podread.Condition(p.Pod, usherv1alpha1.ConditionRegistered))
		return since, true
	}
	return ix.Now, false
}

// overdue reports whether a Service has had its time to list the Pod, or when it will have had it, and since
// when the Pod waits for that. What a Pod reports stays so until the Service lists it: the clock of the process
// that reported it may have been ahead.
func (ix *index) overdue(r *registration, t Target, p *pod) (since, end time.Time, yes bool) {
	opened, open := ix.open(r, t, p)
	if !open || !ix.gated(t) {
		return time.Time{}, time.Time{}, false
	}
	seen, _ := ix.unlistedSince(t, p)
	end = list.Latest(opened, seen).Add(listedAfter)
	since = opened
	if seen.After(opened.Add(listedAfter)) { // It was listed before, or nobody had looked.
		since = seen
	}
	return since, end, p.reportsUnlisted || !ix.Now.Before(end)
}

// toAsk are the Services that are to be asked about the Pod, although the Pod itself says that nothing is left
// to do.
func (ix *index) toAsk(p *pod) (targets []Target) {
	if len(ix.Unlisted) == 0 && !p.reportsUnlisted {
		return nil // as of nearly all Pods
	}
	for _, r := range p.selectedBy {
		for _, t := range r.current {
			_, known := ix.unlistedSince(t, p)
			if _, _, overdue := ix.overdue(r, t, p); known && overdue {
				targets = append(targets, t)
			}
		}
	}
	return targets
}

// noteUnlisted notes the Services that may not list the Pod, and returns when it will have waited for long
// enough.
func (ix *index) noteUnlisted(p *pod, plan *Plan) (next time.Time) {
	if p.DeletionTimestamp != nil {
		return time.Time{}
	}
	for _, r := range p.selectedBy {
		for _, t := range r.current {
			if !ix.gated(t) || ix.keepsListed(r, t, p) {
				continue
			}
			seen, _ := ix.unlistedSince(t, p)
			plan.noteUnlisted(Place{t, p.uid}, seen)
			if _, end, overdue := ix.overdue(r, t, p); !overdue || ix.asksAgain(t) {
				next = list.Earliest(next, end)
			}
		}
	}
	return next
}

// keepsListed reports whether a Service lists the Pod, as far as is known: a Pod that was seen in its Service
// is there until an EndpointSlice changes, or the Pod.
func (ix *index) keepsListed(r *registration, t Target, p *pod) bool {
	listed, err := ix.look(t)
	if err == nil {
		return ix.inService(t, listed, p).serving
	}
	_, known := ix.unlistedSince(t, p)
	_, open := ix.open(r, t, p)
	return open && !known && !errors.Is(err, registry.ErrOneService)
}

// asksAgain reports whether the next pass knows more of the target.
func (ix *index) asksAgain(t Target) bool {
	_, err := ix.look(t)
	return errors.Is(err, errNotListed)
}

func (p *Plan) noteUnlisted(at Place, since time.Time) {
	if p.Unlisted == nil {
		p.Unlisted = Unlisted{}
	}
	p.Unlisted[at] = since
}

// keepUnlisted keeps what is known of an idle Pod.
func (ix *index) keepUnlisted(p *pod, plan *Plan) {
	if len(ix.Unlisted) == 0 {
		return
	}
	for _, t := range targetsOf(p.selectedBy) {
		if since, known := ix.Unlisted[Place{t, p.uid}]; known {
			plan.noteUnlisted(Place{t, p.uid}, since)
		}
	}
}

// missing are the waits of a Pod for Services that should have listed it.
func (ix *index) missing(p *pod) (waiting []Waiting) {
	for _, r := range p.selectedBy {
		for _, t := range r.current {
			since, _, overdue := ix.overdue(r, t, p)
			if !overdue || ix.keepsListed(r, t, p) {
				continue
			}
			base := Waiting{Registration: r.Name, Pod: p.Name, Gate: GateJoining, Registry: t.Registry, Since: since}
			if wait, listed := ix.joined(r, t, p, base); !listed {
				waiting = append(waiting, wait)
			}
		}
	}
	return waiting
}

// whyUnlisted is why a Service does not list a Pod that is Ready.
func (ix *index) whyUnlisted(t Target, p *pod, listed *targetListing) (Reason, string) {
	selector := ix.Listings[t].Selector
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		value, labelled := p.Labels[key]
		if labelled && value == selector[key] {
			continue
		}
		has := "no label " + key
		if labelled {
			has = key + "=" + value
		}
		return ReasonSelectorMismatch, fmt.Sprintf("Service %s selects %s=%s, and the Pod has %s: "+
			"correct the Service's selector, or the Pod's labels", t.Service, key, selector[key], has)
	}
	what := "no endpoint lists it"
	if len(listed.ByOwner(p.UID)) > 0 {
		what = "its endpoint is not ready"
	}
	return ReasonNoEndpoint, fmt.Sprintf("Service %s selects the Pod, and %s: the EndpointSlice controller of "+
		"Kubernetes may be behind, or away", t.Service, what)
}

// nobody is why none of the Registration's Pods is in a Service that should list some; false if one is, or
// none should be.
func (o *Outcome) nobody(t Target) (Waiting, bool) {
	i := slices.IndexFunc(o.Waiting, func(w Waiting) bool {
		return w.Registry == t.Registry && slices.Contains(unlistedReasons, w.Reason)
	})
	if i < 0 || o.Registries[t.Registry].Registered > 0 {
		return Waiting{}, false
	}
	w := o.Waiting[i]
	return w.because(w.Reason, fmt.Sprintf("none of its Pods is in the Service, such as %s: %s", w.Pod, w.Message)), true
}

// inServiceOf looks for the Pod among the endpoints of a Service, and says why it is not there.
func (ix *index) inServiceOf(r *registration, t Target, p *pod, listed *targetListing) presence {
	found := ix.inService(t, listed, p)
	if _, _, overdue := ix.overdue(r, t, p); overdue && !found.current {
		found.reason, found.why = ix.whyUnlisted(t, p, listed)
	}
	return found
}

// countsAs reports whether a Pod counts as registered in a target that this pass did not list: the Pod's
// own condition says so, and no earlier pass has missed the Pod there.
func (ix *index) countsAs(t Target, p *pod, condition bool) bool {
	_, missed := ix.unlistedSince(t, p)
	return condition && !missed
}
