// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

// This file finds out whether the hook operator answers: by the lease of its leader, and by Pods that
// it does not act on. A closed readiness gate alone does not show that the operator is away: it closes
// the gate of each Pod that drains.

// closedGate adds the wait of a Pod that lacks nothing but Usher's readiness gate. Only Usher opens
// that gate, so the Pod waits for as long as Usher is away.
func (w *waiter) closedGate(one *Wait) {
	one.Since = gateSince(w.pod)
	selects := func(r *usherv1alpha1.Registration) bool { return r.DeletionTimestamp == nil && r.Selects(w.pod.Labels) }
	if !slices.ContainsFunc(w.Registrations, selects) {
		w.trouble = true
		one.What = fmt.Sprintf("waits for a Registration that selects it, to open its readiness gate %s", usherv1alpha1.ConditionRegistered)
		one.Next = w.command("get registrations")
		return
	}
	one.What = fmt.Sprintf("waits for Usher to open its readiness gate %s", usherv1alpha1.ConditionRegistered)
	one.Next = ""
	away, since := w.usherAway()
	if away && !since.IsZero() {
		one.Since = since
	}
	if away || gateUnanswered(w.Now, w.pod) {
		w.trouble = true
		one.What = fmt.Sprintf("waits for Usher, which does not answer, to open its readiness gate %s", usherv1alpha1.ConditionRegistered)
		one.Next = askDoctor
	} else {
		w.opens = true
	}
}

// askDoctor is the command that says why Usher does not answer.
const askDoctor = "kubectl usher doctor"

// gateAnswered is how long the hook operator may take to open the gate of a Pod that nothing else
// holds.
const gateAnswered = 30 * time.Second

// gateUnanswered reports whether a Pod lacks nothing but Usher's readiness gate, and the hook operator
// has not reported in time what the Pod waits for.
func gateUnanswered(now time.Time, pod *corev1.Pod) bool {
	c := podread.Condition(pod, usherv1alpha1.ConditionRegistered)
	says := c != nil && c.Reason != "" && c.Reason != regplan.ReasonDeregistered
	return waitsForGate(pod) && !says && !leaves(pod) && now.Sub(gateSince(pod)) > gateAnswered
}

// waitsForGate reports whether a Pod lacks nothing but Usher's readiness gate.
func waitsForGate(pod *corev1.Pod) bool {
	ready, _ := regplan.Ready(pod)
	return ready && regplan.HasGate(pod) && !podread.IsTrue(pod, usherv1alpha1.ConditionRegistered)
}

// gateSince returns since when the operator could open the gate of a Pod: the latest of the times when
// the Pod got ready, entered its lifecycle state, and had its gate closed.
func gateSince(pod *corev1.Pod) time.Time {
	ready, closed := podread.Since(pod, corev1.ContainersReady), podread.Since(pod, usherv1alpha1.ConditionRegistered)
	return list.Latest(ready, podread.StateSince(pod), closed)
}

// leaves reports whether a Pod is leaving service, or out of service on purpose: its gate stays closed
// until somebody else deletes or updates the Pod. After a finished drain, the operator keeps no record
// of it.
func leaves(pod *corev1.Pod) bool {
	request, _ := usherv1alpha1.DeletionRequestOf(pod)
	states := []apps.LifecycleState{apps.StatePreparingUpdate, apps.StateUpdating, apps.StatePreparingDelete}
	return request != nil || regplan.ReadRecord(pod) != nil || slices.Contains(states, regplan.StateOf(pod))
}

// drainEnd returns when the drain of a Pod should have ended, according to the record that the operator
// keeps during the drain; zero if that is unknown, or if a deadline has ended the drain.
func drainEnd(pod *corev1.Pod) time.Time {
	record := regplan.ReadRecord(pod)
	if record == nil || record.Forced || pod.DeletionTimestamp != nil {
		return time.Time{}
	}
	return record.End()
}

// drainOverdue reports whether the operator has not ended a drain whose time is over.
func drainOverdue(now time.Time, pod *corev1.Pod) bool {
	end := drainEnd(pod)
	return !end.IsZero() && now.Sub(end) > gateAnswered
}

// OperatorLeases are the names of leases. The leader of the hook operator holds one of them: the first
// if both halves run in one process, else the second.
var OperatorLeases = []string{"usher." + usherv1alpha1.GroupVersion.Group, "usher-registration." + usherv1alpha1.GroupVersion.Group}

// usherAway reports whether the hook operator has no leader, according to the leases that the caller
// may read, and since when.
func (w *waiter) usherAway() (away bool, since time.Time) {
	for _, l := range w.Leases {
		if l.Spec.RenewTime == nil || !slices.Contains(OperatorLeases, l.Name) {
			continue
		}
		if w.Now.Sub(l.Spec.RenewTime.Time) <= patienceWith(l) {
			return false, time.Time{}
		}
		away, since = true, list.Latest(since, l.Spec.RenewTime.Time)
	}
	return away, since
}

// AsksOperator reports whether a Pod of the workload waits for the hook operator, so that its lease matters.
func (o *Objects) AsksOperator() bool {
	return slices.ContainsFunc(o.Pods, func(pod *corev1.Pod) bool {
		held := pod.DeletionTimestamp != nil && slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer)
		return held || waitsForGate(pod) || leaves(pod) || regplan.StateOf(pod) != apps.StateNormal
	})
}
