// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	setplan "github.com/usher-dev/usher/internal/cloneset/plan"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

func (o *Objects) pod(pod *corev1.Pod, shown regplan.Shown, waits []setplan.Blocked) Pod {
	p := Pod{
		Name: pod.Name, Node: pod.Spec.NodeName, State: stateOf(pod, shown.Holds), Created: pod.CreationTimestamp.Time,
		Revision: cmp.Or(pod.Labels[apps.LabelRevision], pod.Labels[apps.LabelTemplateHash]),
	}
	if c := inplace.ConditionOf(pod, usherv1alpha1.ConditionRegistered); c != nil {
		p.Registered = string(c.Status)
	}
	for _, one := range shown.Entries {
		p.Entries = append(p.Entries, Entry{one.Registry, string(one.Listed)})
	}
	p.Changed = changed(pod)
	for i := range pod.Spec.Containers {
		p.Images = append(p.Images, pod.Spec.Containers[i].Name+"="+pod.Spec.Containers[i].Image)
	}
	for _, c := range containerStatuses(pod) {
		p.Restarts += int(c.RestartCount)
	}
	w := waiter{Objects: o, pod: pod, holds: shown.Holds}
	p.Waits, p.Trouble = w.waits(waits)
	return p
}

// StateDraining is the state of a Pod that leaves its registries because somebody wants to
// delete it; "Normal" in its lifecycle.
const StateDraining = "Draining"

// changed is the latest of the times that the Pod itself shows.
func changed(pod *corev1.Pod) time.Time {
	at := pod.CreationTimestamp.Time
	if since, err := time.Parse(time.RFC3339, pod.Annotations[apps.AnnotationLifecycleTimestamp]); err == nil && since.After(at) {
		at = since
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, usherv1alpha1.ConditionRegistered} {
		if c := inplace.ConditionOf(pod, kind); c != nil && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

// drainedFor is the deletion that a Pod has been drained for; nil if there is none.
func drainedFor(pod *corev1.Pod) *usherv1alpha1.DeletionRequest {
	c := inplace.ConditionOf(pod, usherv1alpha1.ConditionRegistered)
	request, err := usherv1alpha1.DeletionRequestOf(pod)
	if err != nil || c == nil || c.Status != corev1.ConditionFalse || pod.DeletionTimestamp != nil || slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer) {
		return nil
	}
	return request
}

// stateOf is what people call the Pod's state.
func stateOf(pod *corev1.Pod, holds []regplan.Hold) string {
	state := regplan.StateOf(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		return "Terminating"
	case pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
		return string(pod.Status.Phase)
	case state == apps.StateNormal && (drainedFor(pod) != nil || slices.ContainsFunc(holds, func(h regplan.Hold) bool { return h.Gate == regplan.GateRequested })):
		return StateDraining
	}
	return string(state)
}

func containerStatuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// Rank is how much a Pod asks for the reader's eye.
type Rank int

// The ranks.
const (
	// RankTrouble: the wait does not end by itself.
	RankTrouble Rank = iota
	// RankWaits: it waits for somebody.
	RankWaits
	// RankUnavailable: it does not serve.
	RankUnavailable
	// RankServes: it waits for nothing.
	RankServes
)

// Rank is that of the Pod.
func (p *Pod) Rank() Rank {
	switch {
	case p.Trouble:
		return RankTrouble
	case len(p.Waits) > 0:
		return RankWaits
	case !p.Available:
		return RankUnavailable
	}
	return RankServes
}
