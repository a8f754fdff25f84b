// SPDX-License-Identifier: Apache-2.0

package plan

import (
	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/lifecycle"
)

// refresh moves Pods on whose gate is open and puts conditions right. It does
// so for every Pod, whatever the method and also while paused, so that no way
// out of a state can be forgotten.
func (p *pass) refresh() {
	for _, v := range p.pods {
		p.refreshPod(v)
	}
	for _, v := range p.ended {
		p.cleanUp(v)
	}
}

func (p *pass) refreshPod(v *podView) {
	next, reason := lifecycle.Next(lifecycle.Pod{
		State: v.state, Labels: v.pod.Labels, Finalizers: v.pod.Finalizers,
		Scheduled: v.scheduled, UpdateDone: v.updateDone, UpdateWanted: p.updateWanted(v),
	}, p.Spec.Hooks)
	conditions := p.conditions(v, next)
	switch {
	case next != v.state:
		p.act(v, Action{Verb: Move, Reason: reason, Conditions: conditions, To: next})
	case len(conditions) > 0:
		p.act(v, Action{Verb: Move, Reason: ReasonConditions, Conditions: conditions})
	}
	if next == v.state {
		p.blockRefreshed(v)
	}
}

// updateWanted says that the Pod's update shall go on: it is chosen, or paused
// on the way.
func (p *pass) updateWanted(v *podView) bool {
	return v.chosen || (p.Spec.Paused && !v.isTarget && p.Spec.Method != OnDelete)
}

// blockRefreshed notes what a Pod waits for that did not move.
func (p *pass) blockRefreshed(v *podView) {
	hooks := p.Spec.Hooks
	labels, finalizers := v.pod.Labels, v.pod.Finalizers
	var keys []string
	switch v.state {
	case apps.StatePreparingNormal:
		keys = hooks.PreNormal.Missing(labels, finalizers)
	case apps.StatePreparingUpdate:
		keys = hooks.InPlaceUpdate.Holding(labels, finalizers)
	case apps.StateUpdated:
		keys = hooks.InPlaceUpdate.Missing(labels, finalizers)
	case apps.StatePreparingDelete:
		keys = hooks.PreDelete.Holding(labels, finalizers)
	}
	if len(keys) > 0 {
		p.block(v, keys)
	}
}

// conditions lists the conditions of a Pod that are not what they should be in
// its next state. They are worked out from the state alone, never from the way
// the Pod took to it.
func (p *pass) conditions(v *podView, next apps.LifecycleState) []Condition {
	var out []Condition
	switch {
	case p.outOfService(v, next): // False already, and stays so
	case next == apps.StatePreparingDelete: // leaves service, whatever it was
	case v.inPlaceReady.Status == corev1.ConditionFalse:
		out = append(out, Condition{Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionTrue, Reason: ReasonInPlaceDone})
	case v.inPlaceReady.Status == "" && hasGate(v.pod, apps.ConditionInPlaceUpdateReady):
		out = append(out, Condition{Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionTrue, Reason: ReasonInService})
	}
	marked := lifecycle.MarksNotReady(next, p.Spec.Hooks)
	switch {
	case marked && v.podReady.Status != corev1.ConditionFalse:
		out = append(out, Condition{
			Type: apps.ConditionPodReady, Status: corev1.ConditionFalse, Reason: ReasonMarkedNotReady,
			Message: "held by the " + lifecycle.Gate(next) + " hook",
		})
	case !marked && (v.podReady.Status == corev1.ConditionFalse ||
		(v.podReady.Status == "" && hasGate(v.pod, apps.ConditionPodReady))):
		out = append(out, Condition{Type: apps.ConditionPodReady, Status: corev1.ConditionTrue, Reason: ReasonInService})
	}
	return out
}

// outOfService says that an in-place update keeps the Pod out of its endpoints:
// its containers are changing, or the grace period before that has begun.
func (p *pass) outOfService(v *podView, next apps.LifecycleState) bool {
	if v.inPlaceReady.Status != corev1.ConditionFalse {
		return false
	}
	if next == apps.StateUpdating {
		return true
	}
	_, begun := v.graceOver(p.Update.Name, p.Spec.Grace)
	return begun && next == v.state && p.updateWanted(v)
}

func hasGate(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	for _, gate := range pod.Spec.ReadinessGates {
		if gate.ConditionType == kind {
			return true
		}
	}
	return false
}

// cleanUp deletes a Pod that will never run again. Its place is free already;
// its hook is still honoured, since a registry may still list it.
func (p *pass) cleanUp(v *podView) {
	hook := p.Spec.Hooks.PreDelete
	switch {
	case !v.holds(hook):
		p.act(v, Action{Verb: Delete, Reason: ReasonCleanUp})
	case v.state == apps.StatePreparingDelete:
		p.block(v, hook.Holding(v.pod.Labels, v.pod.Finalizers))
	default:
		p.act(v, Action{Verb: Move, Reason: ReasonCleanUp, To: apps.StatePreparingDelete})
	}
}
