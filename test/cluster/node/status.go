// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// computeStatus returns the status that a kubelet would report for the Pod: the object's, with the
// kubelet's fields replaced. It is unchanged while there is nothing to report yet, which saves one
// write per Pod.
func computeStatus(object *corev1.Pod, state *podState, now time.Time) *corev1.PodStatus {
	status := object.Status.DeepCopy()
	if len(status.ContainerStatuses) == 0 && !slices.ContainsFunc(state.containers, (*container).touched) {
		return status
	}
	status.ObservedGeneration = object.Generation
	status.ContainerStatuses = list.Map(state.containers, func(c *container) corev1.ContainerStatus { return c.status(state.unready) })
	status.HostIP, status.HostIPs = state.hostIP, []corev1.HostIP{{IP: state.hostIP}}
	if state.ip != "" {
		status.PodIP, status.PodIPs = state.ip, []corev1.PodIP{{IP: state.ip}}
	}
	if status.StartTime == nil {
		start := stamp(state.startedAt)
		status.StartTime = &start
	}
	if status.Phase != corev1.PodSucceeded && status.Phase != corev1.PodFailed { // these two are final
		status.Phase = phase(state)
	}
	containersReady := containersReady(state)
	for _, condition := range []corev1.PodCondition{
		containersReady, podReady(object, containersReady),
	} {
		condition.ObservedGeneration = object.Generation
		setCondition(status, condition, now)
	}
	setResizeConditions(object, state, status, now)
	return status
}

// touched reports whether anything has happened to the container.
func (c *container) touched() bool { return c.instance != nil || c.exit != nil || c.waiting != nil }

func (c *container) status(unready bool) corev1.ContainerStatus {
	started := c.instance != nil
	status := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.image, ImageID: c.imageID, ContainerID: c.id, RestartCount: c.restarts,
		Started: &started, Ready: c.ready() && !unready,
	}
	resources := &c.resources
	if c.id == "" {
		status.Image, resources = c.spec.Image, &c.spec.Resources
	}
	// Even if there are none: to the API server, a node that reports no resources
	// cannot resize.
	status.Resources = resources.DeepCopy()
	if len(resources.Requests) > 0 {
		status.AllocatedResources = resources.Requests.DeepCopy()
	}
	status.LastTerminationState.Terminated = c.last
	switch {
	case c.instance != nil:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: stamp(c.startedAt)}
	case c.waiting != nil:
		status.State.Waiting = c.waiting
		if c.exit != nil {
			status.LastTerminationState.Terminated = c.exit
		}
	case c.exit != nil:
		status.State.Terminated = c.exit
	default:
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	return status
}

func phase(state *podState) corev1.PodPhase {
	failed := false
	for _, c := range state.containers {
		switch {
		case c.instance == nil && c.exit == nil:
			return corev1.PodPending // it has never run
		case c.instance != nil || !state.down:
		case c.exit.ExitCode != 0:
			failed = true
		}
	}
	switch {
	case !state.down:
		return corev1.PodRunning
	case failed:
		return corev1.PodFailed
	}
	return corev1.PodSucceeded
}

func containersReady(state *podState) corev1.PodCondition {
	unready := func(c *container) bool { return !c.ready() }
	if state.unready || slices.ContainsFunc(state.containers, unready) {
		return corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady"}
	}
	return corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}
}

// podReady is True if the containers are ready and every readiness gate's condition,
// which others set, is True.
func podReady(object *corev1.Pod, containersReady corev1.PodCondition) corev1.PodCondition {
	condition := containersReady
	condition.Type = corev1.PodReady
	for _, gate := range object.Spec.ReadinessGates {
		if condition.Status == corev1.ConditionTrue && !podread.IsTrue(object, gate.ConditionType) {
			condition.Status, condition.Reason = corev1.ConditionFalse, "ReadinessGatesNotReady"
			condition.Message = fmt.Sprintf("readiness gate %q is not True", gate.ConditionType)
		}
	}
	return condition
}

// setResizeConditions reports containers that do not have the resources of their spec:
// they wait, or are being restarted for them. A kubelet has these conditions only while
// they apply.
func setResizeConditions(object *corev1.Pod, state *podState, status *corev1.PodStatus, now time.Time) {
	conditions := map[corev1.PodConditionType]corev1.PodCondition{}
	for _, c := range state.containers {
		switch {
		case c.instance == nil || c.resized():
		case c.affordable:
			conditions[corev1.PodResizeInProgress] = corev1.PodCondition{}
		default:
			conditions[corev1.PodResizePending] = corev1.PodCondition{
				Reason:  corev1.PodReasonInfeasible,
				Message: fmt.Sprintf("Node didn't have enough capacity: cpu, requested: %s", c.spec.Resources.Requests.Cpu()),
			}
		}
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodResizePending, corev1.PodResizeInProgress} {
		condition, applies := conditions[kind]
		if !applies {
			status.Conditions = slices.DeleteFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
			continue
		}
		condition.Type, condition.Status, condition.ObservedGeneration = kind, corev1.ConditionTrue, object.Generation
		setCondition(status, condition, now)
	}
}

// setCondition sets a condition. Its transition time is now only if its status
// changes.
func setCondition(status *corev1.PodStatus, condition corev1.PodCondition, now time.Time) {
	condition.LastTransitionTime = stamp(now)
	i := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == condition.Type })
	if i < 0 {
		status.Conditions = append(status.Conditions, condition)
		return
	}
	if old := status.Conditions[i]; old.Status == condition.Status {
		condition.LastTransitionTime = old.LastTransitionTime
	}
	status.Conditions[i] = condition
}

// statusPatch returns the strategic merge patch that changes the object's status into want; nil if
// nothing changes. It leaves out conditions that want does not change, so that it does not revert what
// others wrote meanwhile.
func statusPatch(object *corev1.Pod, want *corev1.PodStatus) ([]byte, error) {
	if equality.Semantic.DeepEqual(&object.Status, want) {
		return nil, nil
	}
	// The UID is only in the new object, so that the patch contains it and fails if
	// another Pod of that name has replaced this one.
	after := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: object.UID}, Status: *want}
	return client.StrategicMergeFrom(&corev1.Pod{Status: object.Status}).Data(after)
}

// stamp returns a time as the API server stores it: in whole seconds.
func stamp(at time.Time) metav1.Time { return metav1.NewTime(at.Truncate(time.Second)) }
