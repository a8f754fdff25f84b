// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
)

// PodInfo is what is read of one version of a Pod, independent of its set. For an
// unchanged Pod it costs more than everything else in a pass: the Pods of a large set are
// scattered over the memory.
type PodInfo struct {
	pod        *corev1.Pod
	labels     map[string]string
	finalizers []string
	state      apps.LifecycleState
	revision   string
	specified  bool
	cost       int
	phase      corev1.PodPhase
	terminate  bool
	scheduled  bool
	node       string
	ready      bool
	readySince time.Time // zero unless ready
	restarts   int32
	created    time.Time
	// inPlaceReady and podReady are the conditions that the controller owns, never nil.
	// The gates mean that the Pod needs them to be ready.
	inPlaceReady, podReady         *corev1.PodCondition
	inPlaceReadyGate, podReadyGate bool
	// stuckOn is the container that is stuck; nil if none is.
	stuckOn *corev1.ContainerStatus
}

// ReadPods reads Pods. It reuses what was read earlier of the very same object: nobody
// changes a Pod that has been read. Both lists are in name order; Pods out of order are
// read again.
func ReadPods(pods []*corev1.Pod, before []*PodInfo) []*PodInfo {
	out := make([]*PodInfo, len(pods))
	for i, pod := range pods {
		for len(before) > 0 && before[0].pod != pod && before[0].pod.Name < pod.Name {
			before = before[1:]
		}
		if len(before) > 0 && before[0].pod == pod {
			out[i], before = before[0], before[1:]
			continue
		}
		// Allocate each one separately: in a shared allocation, one surviving Pod would
		// retain the old versions of all others.
		out[i] = newPodInfo(pod)
	}
	return out
}

func newPodInfo(pod *corev1.Pod) *PodInfo {
	info := &PodInfo{}
	info.read(pod)
	return info
}

// Pod is the Pod that was read.
func (f *PodInfo) Pod() *corev1.Pod { return f.pod }

// Revision is the revision that the Pod's labels name, in its long form if present; "" if
// they name none.
func (f *PodInfo) Revision() string { return f.revision }

// State is the Pod's lifecycle state from its label; Normal without one.
func (f *PodInfo) State() apps.LifecycleState { return f.state }

// Terminating reports whether the Pod is terminating.
func (f *PodInfo) Terminating() bool { return f.terminate }

// Drained reports whether the Pod's condition says that it is out of service for an
// update.
func (f *PodInfo) Drained() bool { return f.inPlaceReady.Status == corev1.ConditionFalse }

// noCondition stands for a missing condition.
var noCondition corev1.PodCondition

func (f *PodInfo) read(pod *corev1.Pod) {
	f.pod = pod
	f.labels, f.finalizers = pod.Labels, pod.Finalizers
	f.state = apps.LifecycleState(pod.Labels[apps.LabelLifecycleState])
	f.revision = podRevision(pod)
	f.specified = pod.Labels[apps.LabelSpecifiedDelete] == "true"
	f.phase = pod.Status.Phase
	f.terminate = pod.DeletionTimestamp != nil
	f.scheduled = pod.Spec.NodeName != ""
	f.node = pod.Spec.NodeName
	f.created = pod.CreationTimestamp.Time
	if f.state == "" {
		f.state = apps.StateNormal
	}
	if cost, ok := pod.Annotations[corev1.PodDeletionCost]; ok {
		// An unreadable cost counts as 0, as in a ReplicaSet.
		f.cost, _ = strconv.Atoi(cost)
	}
	f.readConditions(pod)
	for i := range pod.Status.ContainerStatuses {
		f.restarts = max(f.restarts, pod.Status.ContainerStatuses[i].RestartCount)
	}
	f.stuckOn = stuckIn(pod)
}

func (f *PodInfo) readConditions(pod *corev1.Pod) {
	if c := inplace.ConditionOf(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		f.ready, f.readySince = true, c.LastTransitionTime.Time
	}
	f.inPlaceReady = cmp.Or(inplace.ConditionOf(pod, apps.ConditionInPlaceUpdateReady), &noCondition)
	f.podReady = cmp.Or(inplace.ConditionOf(pod, apps.ConditionPodReady), &noCondition)
	gates := pod.Spec.ReadinessGates
	f.inPlaceReadyGate = slices.Contains(gates, corev1.PodReadinessGate{ConditionType: apps.ConditionInPlaceUpdateReady})
	f.podReadyGate = slices.Contains(gates, corev1.PodReadinessGate{ConditionType: apps.ConditionPodReady})
}

func podRevision(pod *corev1.Pod) string {
	if long := pod.Labels[apps.LabelRevision]; long != "" {
		return long
	}
	return pod.Labels[apps.LabelTemplateHash]
}
