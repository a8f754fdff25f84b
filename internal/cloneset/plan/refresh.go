// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/encode"
)

// refresh advances Pods whose gate is open and corrects conditions. It does so for every
// Pod, whatever the method and also while paused, so that no way out of a state can be
// forgotten.
func (p *pass) refresh() {
	for _, v := range p.pods {
		if !v.acted && !v.quiet {
			p.refreshPod(v)
		}
	}
	for _, v := range p.ended {
		p.cleanUp(v)
	}
}

func (p *pass) refreshPod(v *podState) {
	if p.cancelPending(v) {
		return
	}
	pod := v.lifecycle()
	// A Pod that waits for its deletion is not led back first. One whose update has more
	// to change continues it when its gate opens.
	pod.UpdateWanted = v.chosen || v.awaitsRemoval() || v.more()
	next, reason := lifecycle.Next(pod, p.Spec.Hooks)
	conditions := p.conditions(v, next)
	if next != v.state {
		v.moved = true
		p.act(v, Action{Verb: Move, Reason: reason, Conditions: conditions, To: next})
		return
	}
	if p.advance(v, conditions) {
		return
	}
	if len(conditions) > 0 {
		p.act(v, Action{Verb: Move, Reason: ReasonConditions, Conditions: conditions})
	}
}

// conditions lists the Pod's conditions that are wrong for its next state. They follow
// from the state alone, never from how the Pod reached it.
func (p *pass) conditions(v *podState, next apps.LifecycleState) []Condition {
	var out []Condition
	switch {
	case next == apps.StatePreparingDelete: // leaves service in any case
	case v.out:
		if !p.keptOut(v, next) {
			out = append(out, Condition{Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionTrue, Reason: ReasonInPlaceDone})
		}
	case v.inPlaceReady.Status == "" && p.keptOut(v, next): // somebody has removed it
		out = append(out, outOfService(v.revision))
	case v.inPlaceReady.Status == "" && v.inPlaceReadyGate:
		out = append(out, Condition{Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionTrue, Reason: ReasonInService})
	}
	return append(out, p.mark(v, next)...)
}

// mark sets or removes the mark that a hook with markPodNotReady asks for.
func (p *pass) mark(v *podState, next apps.LifecycleState) []Condition {
	mark := lifecycle.MarkOf(next, p.Spec.Hooks)
	switch {
	case mark == lifecycle.MarkSet && v.podReadyGate && v.podReady.Status != corev1.ConditionFalse:
		return []Condition{{
			Type: apps.ConditionPodReady, Status: corev1.ConditionFalse, Reason: ReasonMarkedNotReady, Message: notReadyMessage(next),
		}}
	case mark == lifecycle.MarkLifted && v.podReady.Status == corev1.ConditionFalse && !markedByOthers(v.podReady.Message),
		mark != lifecycle.MarkSet && v.podReadyGate && v.podReady.Status == "":
		return []Condition{{Type: apps.ConditionPodReady, Status: corev1.ConditionTrue, Reason: ReasonInService}}
	}
	return nil
}

// notReady is one entry of the condition's message. OpenKruise records in this form who
// marked a Pod, so that its controllers can remove our mark and we can recognize theirs.
type notReady struct {
	UserAgent string `json:"userAgent"`
	Key       string `json:"key"`
}

const ourAgent = "Lifecycle"

func notReadyMessage(state apps.LifecycleState) string {
	key := "preUpdateHook"
	if state == apps.StatePreparingDelete {
		key = "preDeleteHook"
	}
	return string(encode.JSON([]notReady{{UserAgent: ourAgent, Key: key}}))
}

// markedByOthers reports whether someone else keeps the Pod out of service too, for
// example a request to restart one of its containers.
func markedByOthers(message string) bool {
	var marks []notReady
	err := json.Unmarshal([]byte(message), &marks)
	return err == nil && slices.ContainsFunc(marks, func(mark notReady) bool { return mark.UserAgent != ourAgent })
}

// keptOut reports whether an in-place update keeps the Pod out of its endpoints in its
// next state: its containers are changing, or the grace period before that runs.
func (p *pass) keptOut(v *podState, next apps.LifecycleState) bool {
	if next == apps.StateUpdating || v.restarting {
		return true
	}
	_, begun := v.graceOver(p.Update.Name, p.Spec.Grace)
	return begun && v.chosen && next != apps.StateUpdated
}

// cleanUp deletes a Pod that will never run again. Its place is free already; its hook is
// still honoured, since a registry may still list it.
func (p *pass) cleanUp(v *podState) {
	switch {
	case !v.holds(p.Spec.Hooks.PreDelete):
		// The claims stay for its replacement, unless nobody wants them.
		var claims []*corev1.PersistentVolumeClaim
		if p.Spec.DisableClaimReuse || v.specified {
			claims = p.claimsOf(v)
		}
		p.delete(v, Action{Reason: ReasonCleanUp, Claims: claims})
	case v.state == apps.StatePreparingDelete: // its hook holds it
	default:
		p.act(v, Action{Verb: Move, Reason: ReasonCleanUp, To: apps.StatePreparingDelete})
	}
}
