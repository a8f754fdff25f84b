// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// Kubernetes lists a Pod in a Service while it is Ready. There Usher has no entry to write:
// what it can turn is the Pod's condition usher.dev/registered, if that is a readiness gate of
// the Pod. Such a target is called gated. The gate is turned off only for a Pod that is to
// leave, never because the Pod fails by itself: such a Pod comes back without Usher, which may
// be down.

// unanswered is how much later a Pod counts as gone from a Service if it was not Ready when
// its gate was turned off. The kubelet, or the EndpointSlice controller, may still be at work
// on what was before: nothing shows whether they know of the last turn.
const unanswered = 2 * time.Second

// gated reports whether Kubernetes lists the Pods of a target while they are Ready.
func (ix *index) gated(t Target) bool { return ix.Registries[t.Registry].Gated }

// HasGate reports whether the Pod is not Ready without Usher's condition.
func HasGate(pod *corev1.Pod) bool {
	return slices.Contains(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: usherv1alpha1.ConditionRegistered})
}

// answered reports whether the kubelet has answered a turn of the gate.
func answered(a, b *corev1.Pod) bool {
	return HasGate(a) && podread.Status(a, corev1.PodReady) != podread.Status(b, corev1.PodReady)
}

// operates reports whether the Pod comes into a target of the Registration by Usher's doing, or waits for one that
// somebody else brings it into.
func (r *registration) operates(p *pod) bool { return r.writes || r.follows || r.gated && p.door }

// isListed reports whether registries have entries of the Pod that show whether it is registered.
func (p *pod) isListed() bool {
	return slices.ContainsFunc(p.selectedBy, func(r *registration) bool { return r.writes || r.follows })
}

// leavesService reports whether the Registration takes the Pod out of its Service.
func (ix *index) leavesService(p *pod, r *registration) bool {
	return r.gated && p.misplaced(r) != "" && ix.desiredOfUsher(r, p) != unchanged
}

// turn returns the status of the condition of a Pod that is in a Service; false if the
// registries that Usher writes to decide.
func (ix *index) turn(p *pod) (corev1.ConditionStatus, bool) {
	now := podread.Status(p.Pod, usherv1alpha1.ConditionRegistered)
	inService := func(r *registration) bool { return r.gated }
	switch {
	case ix.abandons(p):
		return corev1.ConditionTrue, true
	case p.door && p.requested() && len(p.selectedBy) == 0:
		return corev1.ConditionFalse, true
	case !slices.ContainsFunc(p.selectedBy, inService):
	case !p.door:
		return now, !p.isListed()
	case slices.ContainsFunc(p.selectedBy, func(r *registration) bool { return ix.leavesService(p, r) }):
		return corev1.ConditionFalse, true
	case now == corev1.ConditionTrue:
		return now, true
	}
	return "", false
}

// abandoned reports whether the Pod was in a Service by its gate or label, and no Registration selects it any
// more.
func (ix *index) abandoned(p *pod) bool {
	return p.door && p.DeletionTimestamp == nil && len(p.selectedBy) == 0 &&
		slices.ContainsFunc(p.former, func(r *registration) bool { return slices.ContainsFunc(r.targets(), ix.gated) })
}

// abandons reports whether the Pod's gate is left to the Pod's owner, since no Registration
// selects the Pod any more: it must not keep the Pod out of its Service. A Pod that is to be deleted
// stays out.
func (ix *index) abandons(p *pod) bool { return ix.abandoned(p) && !p.requested() }

// holdsBack reports whether the gate keeps a Pod out of its Service that no Registration
// selects.
func (ix *index) holdsBack(p *pod) bool {
	return ix.abandoned(p) && podread.Status(p.Pod, usherv1alpha1.ConditionRegistered) != corev1.ConditionTrue
}

// holds reports whether a hook waits for the target. A Service is waited for only on behalf of
// a Registration that takes the Pod out of it. A Pod that has no gate cannot be taken out: it
// holds the hooks that somebody has asked for, and no deletion.
func (ix *index) holds(r *registration, t Target, p *pod, h hook) bool {
	switch {
	case ix.follows(t):
		return ix.holdsFollowed(r, p, h)
	case !ix.gated(t):
		return true
	}
	steers := ix.steers(p, t)
	if steers && h.gate == GateRequested && r.ends() && slices.Contains(p.former, r) {
		return true
	}
	return r.gated && slices.Contains(p.selectedBy, r) && (steers || h.gate != GateRequested)
}

// together is how long a Pod stays guarded whose Registration is being deleted. Who deletes a
// Registration often deletes its Pods, too, which the garbage collector reaches some seconds later.
const together = 10 * time.Second

// ends reports whether the Registration is being deleted, and can still be read.
func (r *registration) ends() bool { return r.DeletionTimestamp != nil && r.UID != "" }

// guards is until when a Registration that is being deleted keeps a Pod guarded that is in a Service, or whose
// application has registered itself; zero if it does not.
func (ix *index) guards(p *pod, r *registration) time.Time {
	end := time.Time{}
	stays := p.door && slices.ContainsFunc(r.former, ix.gated) ||
		slices.ContainsFunc(r.former, func(t Target) bool { return ix.overrides(r, t) })
	if stays && r.ends() && p.hasFinalizer() && slices.Contains(p.former, r) {
		end = r.DeletionTimestamp.Add(together)
	}
	if !ix.Now.Before(end) {
		return time.Time{}
	}
	return end
}

// awaitRequest holds a Pod that leaves its Service together with its Registration, in case somebody is
// about to delete it.
func (ix *index) awaitRequest(p *pod, h hook, v *verdict) {
	if h.gate != GateLeaving {
		return
	}
	for _, r := range p.former {
		if end := ix.guards(p, r); !end.IsZero() {
			base := Waiting{Registration: r.Name, Pod: p.Name, Gate: h.gate, Key: h.key.name, Since: r.DeletionTimestamp.Time}
			v.waiting = append(v.waiting, base.because(ReasonTogether, "the Registration is being deleted, and the Pod may be, too: "+
				"it stays guarded until "+end.UTC().Format(time.RFC3339)))
			v.next = list.Earliest(v.next, end)
		}
	}
}

// inService looks for the Pod among the endpoints of a Service.
func (ix *index) inService(t Target, l *targetListing, p *pod) presence {
	found := l.inService(p)
	if label, yes := ix.labelled(t); yes {
		found = l.inByLabel(p, label)
	}
	found.steered = ix.steers(p, t)
	return found
}

// inService looks for the Pod among the endpoints of a Service that has no label for it. It may be listed as
// long as the kubelet or the gate say so, whatever the slices show: those may be older.
func (l *targetListing) inService(p *pod) presence {
	found := presence{reason: ReasonNotListed, inService: p}
	for _, e := range l.ByOwner(p.UID) {
		found.current = found.current || e.Weight > 0
	}
	found.serving = found.current
	found.listed = found.current || podread.Status(p.Pod, corev1.PodReady) == corev1.ConditionTrue ||
		p.gate && podread.Status(p.Pod, usherv1alpha1.ConditionRegistered) == corev1.ConditionTrue
	return found
}

// stage is whom a Pod waits for on its way into a Service, or out of it.
func (ix *index) stage(p *pod, t Target, in bool) string {
	if label, yes := ix.labelled(t); yes {
		return ix.stageByLabel(p, t, label, in)
	}
	gate, ready := podread.Status(p.Pod, usherv1alpha1.ConditionRegistered), podread.Status(p.Pod, corev1.PodReady)
	switch {
	case p.gate && (gate == corev1.ConditionTrue) != in:
		return fmt.Sprintf("its readiness gate %s is %s yet", usherv1alpha1.ConditionRegistered, gate)
	case (ready == corev1.ConditionTrue) != in:
		return fmt.Sprintf("its kubelet has to answer the readiness gate: Ready is %s yet", ready)
	case in:
		return fmt.Sprintf("Service %s does not list it as ready: if that stays so, compare the Service's selector with its labels", t.Service)
	}
	return fmt.Sprintf("Service %s still lists it as ready", t.Service)
}

// goneFromService is since when a Pod is gone from a Service: since now, or a while later if
// nothing shows that the kubelet has answered the last turn of the gate.
func (ix *index) goneFromService(p *pod, t Target) time.Time {
	if _, yes := ix.labelled(t); yes {
		return ix.goneByLabel(p)
	}
	gate, ready := podread.Condition(p.Pod, usherv1alpha1.ConditionRegistered), podread.Condition(p.Pod, corev1.PodReady)
	if p.gate && gate != nil && ready != nil && ready.LastTransitionTime.Before(&gate.LastTransitionTime) {
		return ix.Now.UTC().Add(unanswered)
	}
	return ix.Now.UTC()
}

// gateless tells of a Pod that cannot be taken out of its Service. At a hook that it leaves by,
// the hook tells.
func (ix *index) gateless(p *pod) []Waiting {
	if p.gate && !ix.labels || slices.ContainsFunc(p.hooks, hook.leaving) {
		return nil
	}
	var waiting []Waiting
	for _, r := range p.selectedBy {
		for _, t := range r.current {
			if ix.gated(t) && !ix.steers(p, t) {
				base := Waiting{Registration: r.Name, Pod: p.Name, Gate: GateJoining, Registry: t.Registry}
				waiting = append(waiting, ix.unsteered(base, p, t))
			}
		}
	}
	return waiting
}

// unsteered explains that nothing takes a Pod out of its Service.
func (ix *index) unsteered(w Waiting, p *pod, t Target) Waiting {
	if label, yes := ix.labelled(t); yes {
		return w.because(ReasonLabelUnusable, fmt.Sprintf("nothing takes it out of Service %s before it ends: %s", t.Service, ix.unturnable(p, label)))
	}
	return w.because(ReasonGateMissing, fmt.Sprintf("it has no readiness gate, so nothing takes it out of Service %s before it ends: "+
		"add spec.readinessGates: [{conditionType: %s}] to its Pod template", t.Service, usherv1alpha1.ConditionRegistered))
}
