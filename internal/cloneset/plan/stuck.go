// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
)

// Reasons that kubelets give.
const (
	reasonImage = "ImagePullBackOff"
	reasonCrash = "CrashLoopBackOff"
)

// GateContainer stands for a gate where a Pod waits for one of its own containers that
// cannot start or exits again and again.
const GateContainer = "container"

// Stuck is a container that keeps its Pod from getting ready and that waiting does not
// fix: according to the kubelet it cannot start, or exits again and again.
type Stuck struct {
	// Container is its name, Image what the Pod asks for.
	Container, Image string
	// Reason is the kubelet's, for example ImagePullBackOff or CrashLoopBackOff.
	Reason string
}

// persistentReason returns the reason of a stuck waiting container; "" if it is not stuck.
// Of reasons that a kubelet alternates between, it returns the one that persists.
func persistentReason(reason string) string {
	switch reason {
	case "ErrImagePull", reasonImage:
		return reasonImage
	case "RunContainerError", reasonCrash:
		return reasonCrash
	case "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "CreateContainerConfigError", "CreateContainerError":
		return reason
	}
	return ""
}

// Persistent reports whether a container that waits for that reason of the kubelet is stuck.
func Persistent(reason string) bool { return persistentReason(reason) != "" }

// stuckIn returns the first stuck container, init containers first; nil if none is, or
// the kubelet has not yet observed the Pod's present spec.
func stuckIn(pod *corev1.Pod) *corev1.ContainerStatus {
	if seen := pod.Status.ObservedGeneration; seen > 0 && seen < pod.Generation {
		return nil
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if stuckReason(pod, &list[i]) != "" {
				return &list[i]
			}
		}
	}
	return nil
}

// stuckReason is why a container is stuck; "" if it is not.
func stuckReason(pod *corev1.Pod, status *corev1.ContainerStatus) string {
	reason := ""
	if waiting := status.State.Waiting; waiting != nil {
		reason = persistentReason(waiting.Reason)
	} else if crash := crashed(status); crash != nil {
		// Otherwise a crashing container would alternate between stuck and not.
		reason = reasonCrash
		if last, known := lastUpdate(pod, status.Name); known && (last.ContainerID == "" || last.ContainerID == crash.ContainerID) {
			return "" // It was ended for the update, or may have been.
		}
	}
	if reason != reasonCrash {
		return reason
	}
	// If a kubelet ended a container for an update and cannot get its new image, it keeps
	// the container waiting as if the new one had crashed.
	last, known := lastUpdate(pod, status.Name)
	if known && last.ContainerID != "" && last.ContainerID == status.ContainerID {
		return reasonImage
	}
	return reason
}

// crashed returns how a container ended that is not ready again; nil if it has not
// failed.
func crashed(status *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	end := status.State.Terminated
	if status.State.Running != nil {
		end = status.LastTerminationState.Terminated
	}
	if status.Ready || end == nil || end.ExitCode == 0 {
		return nil
	}
	return end
}

// lastUpdate is what a container was before the Pod's last update in place.
func lastUpdate(pod *corev1.Pod, container string) (inplace.ContainerStatus, bool) {
	record, err := inplace.ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil {
		return inplace.ContainerStatus{}, true // Nobody knows.
	}
	last, known := record.LastContainerStatuses[container]
	return last, known
}

// stuck reports a Pod of the update revision that a container keeps from getting ready;
// nil if none does. A Pod that is being removed does not have to get ready.
func (p *podState) stuck() *Blocked {
	leaves := p.terminate || p.ended() || p.state == apps.StatePreparingUpdate || p.state == apps.StatePreparingDelete
	status := p.stuckOn
	if leaves || !p.isUpdated || status == nil {
		return nil
	}
	found := Stuck{Container: status.Name, Image: inplace.ImageOf(p.pod, status.Name), Reason: stuckReason(p.pod, status)}
	return &Blocked{Pod: p.pod.Name, Gate: GateContainer, State: p.state, Keys: []string{found.Reason}, Since: notReadySince(p.pod), Stuck: &found}
}

// notReadySince is since when the Pod is not ready; zero if unknown. The kubelet does not
// report since when a container waits.
func notReadySince(pod *corev1.Pod) time.Time {
	if c := inplace.ConditionOf(pod, corev1.PodReady); c != nil && c.Status != corev1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// Crashes reports whether the container starts and exits again, rather than not start.
func (s *Stuck) Crashes() bool { return s.Reason == reasonCrash }

// Fault says what is wrong with the container.
func (s *Stuck) Fault() string {
	what := "cannot be started"
	if s.Crashes() {
		what = "keeps exiting"
	}
	return fmt.Sprintf("its container %s with image %s %s (%s)", s.Container, s.Image, what, s.Reason)
}

// text says what is wrong, and what to do.
func (s *Stuck) text(pod string, at time.Time) string {
	return fmt.Sprintf("Pod %s is not ready: %s%s; fix the template or roll it back", pod, s.Fault(), since("", at))
}
