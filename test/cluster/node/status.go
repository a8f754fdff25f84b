// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// computeStatus is the status that a kubelet would report for the Pod: the object's,
// with the kubelet's fields replaced. It returns nil while there is nothing to report
// yet, which saves one write per Pod.
func computeStatus(object *corev1.Pod, state *podState, now time.Time) *corev1.PodStatus {
	if len(object.Status.ContainerStatuses) == 0 && !state.touched() {
		return nil
	}
	status := object.Status.DeepCopy()
	status.ObservedGeneration = object.Generation
	status.InitContainerStatuses, status.ContainerStatuses = containerStatuses(object, state)
	status.HostIP = state.hostIP
	status.HostIPs = []corev1.HostIP{{IP: state.hostIP}}
	if state.ip != "" {
		status.PodIP = state.ip
		status.PodIPs = []corev1.PodIP{{IP: state.ip}}
	}
	if status.StartTime == nil {
		start := stamp(state.startedAt)
		status.StartTime = &start
	}
	if status.Phase != corev1.PodSucceeded && status.Phase != corev1.PodFailed { // these two are final
		status.Phase = computePhase(object, state)
	}
	for _, condition := range computeConditions(object, state, status) {
		condition.ObservedGeneration = object.Generation
		setCondition(status, condition, now)
	}
	setResizeConditions(object, state, status, now)
	return status
}

// touched reports whether anything has happened to a container.
func (s *podState) touched() bool {
	for _, c := range s.containers {
		if c.instance != nil || c.exit != nil || c.waiting != nil {
			return true
		}
	}
	return false
}

func containerStatuses(object *corev1.Pod, state *podState) (inits, mains []corev1.ContainerStatus) {
	for i, c := range state.containers {
		if i < len(object.Spec.InitContainers) {
			inits = append(inits, containerStatus(&object.Spec.InitContainers[i], c, state))
		} else {
			mains = append(mains, containerStatus(&object.Spec.Containers[i-len(object.Spec.InitContainers)], c, state))
		}
	}
	return inits, mains
}

func containerStatus(spec *corev1.Container, c *container, state *podState) corev1.ContainerStatus {
	started := c.started()
	status := corev1.ContainerStatus{
		Name: c.name, Image: c.image, ImageID: c.imageID, ContainerID: c.id, RestartCount: c.restarts,
		Started: &started, Ready: c.ready() && !state.unready,
	}
	if c.role == roleInit {
		status.Ready = c.passed()
	}
	resources := &c.resources
	if c.id == "" {
		status.Image, resources = spec.Image, &spec.Resources
	}
	// Even if there are none: to the API server, a node that reports no resources
	// cannot resize.
	status.Resources = resources.DeepCopy()
	if len(resources.Requests) > 0 {
		status.AllocatedResources = resources.Requests.DeepCopy()
	}
	status.State, status.LastTerminationState.Terminated = containerState(c, state)
	return status
}

// containerState is the container's state, and the end of the previous instance.
func containerState(c *container, state *podState) (corev1.ContainerState, *corev1.ContainerStateTerminated) {
	switch {
	case c.instance != nil:
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: stamp(c.startedAt)}}, c.last
	case c.waiting != nil && c.exit != nil:
		return corev1.ContainerState{Waiting: c.waiting}, c.exit
	case c.waiting != nil:
		return corev1.ContainerState{Waiting: c.waiting}, c.last
	case c.exit != nil:
		return corev1.ContainerState{Terminated: c.exit}, c.last
	}
	reason := "ContainerCreating"
	if !state.initialized && state.containers[0].role != roleMain {
		reason = "PodInitializing"
	}
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}, nil
}

// census counts the containers that determine the Pod's phase.
type census struct {
	pending   int // init containers that still block the others
	waiting   int // main containers that have never run
	running   int
	stopped   int // main containers that have ended
	succeeded int // of those, with exit code 0
	returning int // of those, to be started again
	initLost  bool
}

func takeCensus(object *corev1.Pod, state *podState) census {
	var n census
	policy := object.Spec.RestartPolicy
	for _, c := range state.containers {
		if c.role == roleMain {
			n.countMain(c, policy)
			continue
		}
		if c.role == roleSidecar && c.instance != nil {
			n.running++
		}
		if !c.passed() && !state.initialized {
			n.pending++
			n.initLost = n.initLost || c.role == roleInit && c.exit != nil && policy == corev1.RestartPolicyNever
		}
	}
	return n
}

func (n *census) countMain(c *container, policy corev1.RestartPolicy) {
	switch {
	case c.instance != nil:
		n.running++
	case c.exit == nil:
		n.waiting++
	default:
		n.stopped++
		if c.exit.ExitCode == 0 {
			n.succeeded++
		}
		if c.fresh || policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && c.exit.ExitCode != 0 {
			n.returning++
		}
	}
}

func computePhase(object *corev1.Pod, state *podState) corev1.PodPhase {
	n := takeCensus(object, state)
	switch {
	case n.initLost:
		return corev1.PodFailed
	case n.pending > 0 || n.waiting > 0:
		return corev1.PodPending
	case n.running > 0 || n.returning > 0 && !state.down:
		return corev1.PodRunning
	case n.stopped == n.succeeded:
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

// computeConditions are the conditions that a kubelet owns, without times.
func computeConditions(object *corev1.Pod, state *podState, status *corev1.PodStatus) []corev1.PodCondition {
	containersReady := containersReadyCondition(state, status.Phase)
	return []corev1.PodCondition{
		{Type: corev1.PodReadyToStartContainers, Status: boolStatus(state.ip != "" && !state.down)},
		initializedCondition(state, status.Phase),
		readyCondition(object, containersReady),
		containersReady,
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	}
}

func initializedCondition(state *podState, phase corev1.PodPhase) corev1.PodCondition {
	condition := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if phase == corev1.PodSucceeded {
		condition.Reason = "PodCompleted"
	}
	var incomplete []string
	for _, c := range state.containers {
		if c.role != roleMain && !c.passed() {
			incomplete = append(incomplete, c.name)
		}
	}
	if len(incomplete) > 0 && !state.initialized {
		condition.Status = corev1.ConditionFalse
		condition.Reason = "ContainersNotInitialized"
		condition.Message = fmt.Sprintf("containers with incomplete status: %s", incomplete)
	}
	return condition
}

func containersReadyCondition(state *podState, phase corev1.PodPhase) corev1.PodCondition {
	condition := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	switch phase {
	case corev1.PodSucceeded:
		condition.Reason = "PodCompleted"
		return condition
	case corev1.PodFailed:
		condition.Reason = "PodFailed"
		return condition
	}
	var unready []string
	for _, c := range state.containers {
		if c.role != roleInit && (!c.ready() || state.unready) {
			unready = append(unready, c.name)
		}
	}
	if len(unready) > 0 {
		condition.Reason = "ContainersNotReady"
		condition.Message = fmt.Sprintf("containers with unready status: %s", unready)
		return condition
	}
	condition.Status = corev1.ConditionTrue
	return condition
}

// readyCondition is True if the containers are ready and every readiness gate's
// condition, which others set, is True.
func readyCondition(object *corev1.Pod, containersReady corev1.PodCondition) corev1.PodCondition {
	condition := containersReady
	condition.Type = corev1.PodReady
	if condition.Status != corev1.ConditionTrue {
		return condition
	}
	var closed []string
	for _, gate := range object.Spec.ReadinessGates {
		if !conditionTrue(object.Status.Conditions, gate.ConditionType) {
			closed = append(closed, fmt.Sprintf("readiness gate %q is not True", gate.ConditionType))
		}
	}
	if len(closed) > 0 {
		condition.Status = corev1.ConditionFalse
		condition.Reason = "ReadinessGatesNotReady"
		condition.Message = strings.Join(closed, ", ")
	}
	return condition
}

// setCondition sets a condition. Its transition time is now only if its status
// changes.
func setCondition(status *corev1.PodStatus, condition corev1.PodCondition, now time.Time) {
	condition.LastTransitionTime = stamp(now)
	for i := range status.Conditions {
		old := &status.Conditions[i]
		if old.Type != condition.Type {
			continue
		}
		if old.Status == condition.Status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
		*old = condition
		return
	}
	status.Conditions = append(status.Conditions, condition)
}

// statusPatch is the strategic merge patch that changes the object's status into want;
// nil if nothing changes. It leaves out conditions that want does not change, so that
// it does not revert what others wrote meanwhile.
func statusPatch(object *corev1.Pod, want *corev1.PodStatus) ([]byte, error) {
	if equality.Semantic.DeepEqual(&object.Status, want) {
		return nil, nil
	}
	before, err := json.Marshal(corev1.Pod{Status: object.Status})
	if err != nil {
		return nil, fmt.Errorf("encode the old status: %w", err)
	}
	// The UID is only in the new object, so that the patch contains it and fails if
	// another Pod of that name has replaced this one.
	after, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: object.UID}, Status: *want})
	if err != nil {
		return nil, fmt.Errorf("encode the new status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("compare the old and the new status: %w", err)
	}
	return patch, nil
}

func boolStatus(value bool) corev1.ConditionStatus {
	if value {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}
