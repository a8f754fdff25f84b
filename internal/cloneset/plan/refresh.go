// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
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

// Return decides whether a Pod that has changed since the snapshot goes back into service. That affects
// no other Pod and uses no budget. Everything else is left to the next pass.
func Return(s *Snapshot, pod *corev1.Pod, now time.Time) (Action, bool) {
	one := *s
	one.Now, one.Pods, one.PodInfos = now, []*corev1.Pod{pod}, nil
	if one.Deletion != NotDeleted || slices.Contains(one.Spec.PodsToDelete, pod.Name) || s.rollback() != nil {
		return Action{}, false
	}
	p, v := &pass{Snapshot: &one}, &podState{}
	one.read(v, newPodInfo(pod))
	if !v.active() || v.specified || !v.isUpdated || v.quiet || v.closed() {
		return Action{}, false
	}
	p.refreshPod(v)
	if !v.acted || p.plan.Actions[0].To != apps.StateNormal {
		return Action{}, false
	}
	return p.plan.Actions[0], true
}

// closed reports whether a readiness gate of the Pod was never opened: the task that creates the Pod
// still has to.
func (f *PodInfo) closed() bool {
	return f.inPlaceReadyGate && f.inPlaceReady.Status == "" || f.podReadyGate && f.podReady.Status == ""
}

func (p *pass) refreshPod(v *podState) {
	if p.cancelPending(v) {
		return
	}
	pod := v.lifecycle()
	// A Pod that is to be deleted does not return to service first. A Pod whose update has more to
	// change continues it when its gate opens.
	pod.UpdateWanted = v.chosen || v.awaitsRemoval() || v.more()
	next, reason := lifecycle.Next(pod, p.Spec.Hooks)
	conditions, launch := p.conditions(v, next), v.launches()
	switch {
	case next != v.state:
		v.moved = true
		p.act(v, Action{Verb: Move, Reason: reason, Conditions: conditions, To: next, Launch: launch})
	case p.advance(v, conditions):
	case launch != "":
		p.act(v, Action{Verb: Move, Reason: ReasonLaunch, Conditions: conditions, Launch: launch})
	case len(conditions) > 0:
		p.act(v, Action{Verb: Move, Reason: ReasonConditions, Conditions: conditions})
	}
}

// launches returns the annotation that lets the next containers of the Pod start; "" if there are none,
// those before them are not ready, or the Pod is to go.
func (p *podState) launches() string {
	if p.launch == nil || len(p.launch.First) > 0 || p.preparesDelete() {
		return ""
	}
	return p.launch.Key
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
	set, lift := lifecycle.MarkOf(next, p.Spec.Hooks)
	switch {
	case set && v.podReadyGate && v.podReady.Status != corev1.ConditionFalse:
		return []Condition{{
			Type: apps.ConditionPodReady, Status: corev1.ConditionFalse, Reason: ReasonMarkedNotReady, Message: notReadyMessage(next),
		}}
	case lift && v.podReady.Status == corev1.ConditionFalse && !markedByOthers(v.podReady.Message),
		!set && v.podReadyGate && v.podReady.Status == "":
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

// cleanUp deletes a Pod that will never run again. Its place is free already, but its hook still
// counts, since a registry may still list the Pod.
func (p *pass) cleanUp(v *podState) {
	switch {
	case !v.holds(p.Spec.Hooks.PreDelete) && v.evidence:
	case !v.holds(p.Spec.Hooks.PreDelete):
		// The claims stay for its replacement, unless they are unwanted.
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

// advance continues an update in place that takes more than one write: with the containers of the next
// launch priority, and with cpu and memory that the record asks for and nobody has written yet. It is
// no new update: the Pod is out of service and paid for, so it continues while the set is paused too. A
// Pod that is to get another revision is left to its update.
func (p *pass) advance(v *podState, conditions []Condition) bool {
	if !v.unfinished() || v.chosen || v.pending || v.preparesDelete() {
		return false
	}
	if v.state != apps.StateUpdating && v.holds(p.Spec.Hooks.InPlaceUpdate) {
		return p.backToGate(v)
	}
	if v.more() && p.giveUp(v, conditions) {
		return true
	}
	if reason := p.nextStep(v); reason != "" {
		p.continueUpdate(v, reason, conditions)
		return true
	}
	p.noteResize(v)
	return false
}

// nextStep returns the reason for the next write of the Pod's update; "" if the update has to wait, or
// has nothing more to write.
func (p *pass) nextStep(v *podState) string {
	switch {
	case len(v.record.Resizes(v.pod)) > 0:
		return ReasonResize
	case len(v.record.Waits(v.pod, p.Now)) == 0 && len(v.record.Pending(v.pod)) > 0:
		return ReasonNextContainers
	}
	return ""
}

// continueUpdate writes the next step. If somebody has changed the Pod's state or condition meanwhile,
// it sets them again to those of an update out of service.
func (p *pass) continueUpdate(v *podState, reason string, conditions []Condition) {
	a := Action{Verb: Continue, Reason: reason, Conditions: conditions, Class: ClassOfRest(v.pod)}
	if v.state != apps.StateUpdating {
		a.To = apps.StateUpdating
	}
	if v.inPlaceReady.Status == corev1.ConditionTrue {
		a.Conditions = append(conditions, outOfService(v.revision))
	}
	p.act(v, a)
}

// backToGate returns a Pod to the gate if its hook holds it again during an update, for example because
// a scale-in that had chosen it was cancelled: it may be registered again, and its other containers are
// still to change.
func (p *pass) backToGate(v *podState) bool {
	if v.state == apps.StatePreparingUpdate || !v.more() {
		return false
	}
	p.act(v, Action{
		Verb: Move, Reason: ReasonPrepareUpdate, To: apps.StatePreparingUpdate,
		Conditions: p.conditions(v, apps.StatePreparingUpdate),
	})
	return true
}

// unfinished reports whether an update's record asks for more than the Pod's spec has, or
// the kubelet has done.
func (p *podState) unfinished() bool { return p.inUpdate() && p.restarting && p.record != nil }

// more reports whether the record asks for more than the Pod's spec has.
func (p *podState) more() bool {
	return p.unfinished() && (len(p.record.Pending(p.pod)) > 0 || len(p.record.Resizes(p.pod)) > 0)
}

// outOfService returns the condition of a Pod whose containers are about to change.
func outOfService(revision string) Condition {
	return Condition{
		Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionFalse, Reason: ReasonStartInPlace, Message: revision,
	}
}

// noteResize reports a kubelet that does not accept the new cpu and memory.
func (p *pass) noteResize(v *podState) {
	trouble := inplace.ResizeTrouble(v.pod)
	if len(v.record.Resources) == 0 || trouble == "" {
		return
	}
	p.problem(ProblemResize,
		"the kubelet of Pod %s does not resize its containers %s (%s): request resources in spec.template that the node has, restore the previous ones, or delete the Pod so that it is recreated on another node",
		v.pod.Name, strings.Join(slices.Sorted(maps.Keys(v.record.Resources)), ", "), trouble)
}

// cancelPending relabels a Pod with the revision that it runs, and reports whether a revision fits.
// OpenKruise labels a Pod first and changes its containers after the grace period; if it stopped in
// between, and the Pod is not to be updated now, the Pod would stay out of service for as long as the
// set is paused. Relabelling cancels the waiting update, and the next pass brings the Pod back.
func (p *pass) cancelPending(v *podState) bool {
	if !v.pending || v.chosen || v.specified {
		return false
	}
	for _, r := range p.newestFirst() {
		change := inplace.Pending(v.pod, r.Template)
		if change.Drains() {
			continue
		}
		p.act(v, Action{Verb: Update, Reason: lifecycle.ReasonUpdateDropped, Revision: r, Change: change})
		return true
	}
	return false
}

// newestFirst lists the readable revisions: the current one first, which the Pod most
// likely has, then the others from newest to oldest.
func (p *pass) newestFirst() []*revision.Revision {
	all := slices.SortedFunc(maps.Values(p.Revisions), func(a, b *revision.Revision) int {
		return cmp.Or(falseFirst(a != p.Current, b != p.Current), cmp.Compare(b.Number, a.Number), cmp.Compare(a.Name, b.Name))
	})
	return slices.DeleteFunc(all, func(r *revision.Revision) bool { return r.Template == nil })
}
