// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/plan"
)

// tell records the events of a pass, after its status. No event carries more of
// a Pod than its name; the recorder folds repeated events into one.
func (r *Reconciler) tell(set *apps.CloneSet, decided *plan.Plan, outcomes []outcome, now time.Time) {
	for _, o := range outcomes {
		r.tellOutcome(set, o)
	}
	for _, problem := range decided.Problems {
		r.warn(set, problem.Reason, "Plan", "%s", problem.Message)
	}
	if decided.ScaleUpLimited > 0 {
		r.warn(set, "ScaleUpLimited", "Create",
			"scaleStrategy.maxUnavailable keeps %d Pods from being created until others are available", decided.ScaleUpLimited)
	}
	if at := longWaitAt(decided); !at.IsZero() && !at.After(now) {
		r.normal(set, string(apps.ConditionBlocked), "Wait", "%s", findBlocked(decided.Blocked).message)
	}
}

// longWait is how long a Pod waits at a gate before an event says so. The
// condition says it at once.
const longWait = 10 * time.Second

// longWaitAt is when the longest wait becomes a long one; zero if nobody waits.
func longWaitAt(decided *plan.Plan) time.Time {
	if len(decided.Blocked) == 0 || decided.Blocked[0].Since.IsZero() {
		return time.Time{}
	}
	return decided.Blocked[0].Since.Add(longWait)
}

// told are the events of an action: if it succeeded, and if it failed.
type told struct{ done, failed, verb string }

func toldOf(a plan.Action) (told, bool) {
	switch {
	case a.Verb == plan.Create:
		return told{"SuccessfulCreate", "FailedCreate", "create"}, true
	case a.Reason == plan.ReasonRecreate:
		return told{"SuccessfulUpdatePodReCreate", "FailedUpdatePodReCreate", "recreate"}, true
	case a.Verb == plan.Delete:
		return told{"SuccessfulDelete", "FailedDelete", "delete"}, true
	case a.Verb == plan.Update:
		return told{"SuccessfulUpdatePodInPlace", "FailedUpdatePodInPlace", "update in place"}, true
	}
	return told{"", "FailedUpdatePod", "change"}, false
}

func (r *Reconciler) tellOutcome(set *apps.CloneSet, o outcome) {
	event, worthTelling := toldOf(o.action)
	name := "a Pod"
	switch {
	case o.pod != nil:
		name = "Pod " + o.pod.Name
	case o.action.Pod != nil:
		name = "Pod " + o.action.Pod.Name
	}
	switch {
	case o.err != nil && !o.stale():
		r.warn(set, event.failed, string(o.action.Verb), "%s %s: %v", event.verb, name, o.err)
	case o.err == nil && worthTelling:
		// The Pod is the related object, so that events of two Pods do not fold
		// into one; the event holds a reference to it, not the Pod.
		r.Events.Eventf(set, o.pod, corev1.EventTypeNormal, event.done, string(o.action.Verb),
			"%s %s (%s)", event.verb, name, o.action.Reason)
	}
}

func (r *Reconciler) normal(set *apps.CloneSet, reason, action, note string, args ...any) {
	r.Events.Eventf(set, nil, corev1.EventTypeNormal, reason, action, note, args...)
}

func (r *Reconciler) warn(set *apps.CloneSet, reason, action, note string, args ...any) {
	r.Events.Eventf(set, nil, corev1.EventTypeWarning, reason, action, note, args...)
}
