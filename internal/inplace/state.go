// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// State is the record of a Pod's latest in-place update, kept in the annotation
// apps.kruise.io/inplace-update-state. Members that others wrote and this
// version does not know are not kept: each update writes the record anew.
type State struct {
	// Revision that the update leads to.
	Revision string `json:"revision"`
	// UpdateTimestamp is when the Pod's spec was changed.
	UpdateTimestamp metav1.Time `json:"updateTimestamp"`
	// LastContainerStatuses are the updated containers as they were before.
	LastContainerStatuses map[string]ContainerStatus `json:"lastContainerStatuses"`
	// UpdateImages says that container images changed.
	UpdateImages bool `json:"updateImages,omitempty"`
}

// ContainerStatus is what is kept of a container that is being replaced, as the
// kubelet reported it. OpenKruise writes the image ID only.
type ContainerStatus struct {
	ImageID     string `json:"imageID,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	Image       string `json:"image,omitempty"`
	// Superseded is the image that the spec asked for until now, if the kubelet
	// had not got there yet: it may still pass through it, or never get to it.
	Superseded string `json:"superseded,omitempty"`
}

// NewState makes the record of an update that starts now on a Pod as it is.
// What an update before it has not finished is carried over.
func NewState(pod *corev1.Pod, change *Change, revision string, now time.Time) State {
	state := State{
		Revision: revision, UpdateTimestamp: metav1.NewTime(now),
		LastContainerStatuses: map[string]ContainerStatus{}, UpdateImages: len(change.Images) > 0,
	}
	unfinished := unfinishedOf(pod, now)
	for name, last := range unfinished {
		state.LastContainerStatuses[name] = last
	}
	for name, image := range change.Images {
		spec := imageOf(pod, name)
		if spec == image {
			continue // nothing for the kubelet to do, or as before
		}
		last := ContainerStatus{}
		if status := statusOf(pod, name); status != nil {
			last = ContainerStatus{ImageID: status.ImageID, ContainerID: status.ContainerID, Image: status.Image}
		}
		if _, ok := unfinished[name]; ok || last.ImageID == "" {
			last.Superseded = spec
		}
		state.LastContainerStatuses[name] = last
	}
	return state
}

// unfinishedOf are the containers that an earlier update still waits for.
func unfinishedOf(pod *corev1.Pod, now time.Time) map[string]ContainerStatus {
	if apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) != apps.StateUpdating {
		return nil
	}
	before, err := ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil {
		return nil
	}
	if done, _ := before.Done(pod, now); done {
		return nil
	}
	return before.LastContainerStatuses
}

// ParseState reads the annotation; an absent one gives the zero State.
func ParseState(annotation string) (State, error) {
	var state State
	if annotation == "" {
		return state, nil
	}
	if err := json.Unmarshal([]byte(annotation), &state); err != nil {
		return State{}, fmt.Errorf("annotation %s: %w", apps.AnnotationInPlaceUpdateState, err)
	}
	return state, nil
}

// String encodes the record for the annotation.
func (s State) String() string {
	data, err := json.Marshal(s)
	if err != nil { // a map of strings and a time always encode
		return "{}"
	}
	return string(data)
}

// settling is how long a container has to run on, beside the time that it may
// take to stop, before it passes for the last one where names cannot tell.
const settling = 10 * time.Second

// Done says whether the kubelet runs what the update asked for; if time alone
// will tell, it also gives the time. It does not ask whether the containers are
// ready.
func (s State) Done(pod *corev1.Pod, now time.Time) (bool, time.Time) {
	if pod.Spec.NodeName == "" {
		return true, time.Time{} // no kubelet has it: it starts as it now is
	}
	if tracked(pod) && !seen(pod) {
		return false, time.Time{}
	}
	from := time.Time{}
	for name, last := range s.LastContainerStatuses {
		status := statusOf(pod, name)
		if status == nil || status.ImageID == "" {
			return false, time.Time{}
		}
		yes, at := s.runs(pod, status, last)
		if !yes {
			return false, time.Time{}
		}
		if at.After(from) {
			from = at
		}
	}
	return !now.Before(from), from
}

// runs says whether one container is what the update asked for, or will have
// proved to be from some time on.
func (s State) runs(pod *corev1.Pod, status *corev1.ContainerStatus, last ContainerStatus) (bool, time.Time) {
	wanted := imageOf(pod, status.Name)
	rightName := SameImage(status.Image, wanted)
	if status.ImageID != last.ImageID {
		if last.Superseded == "" || rightName || !SameImage(status.Image, last.Superseded) {
			return true, time.Time{}
		}
		return s.restarted(pod, status) // passing through, or the same image by another name
	}
	// The image is the one from before. Either two names mean one image: then the
	// container has been restarted since. Or the update took back another one
	// before the kubelet acted on it: then the container just runs on.
	if last.ContainerID == "" || status.ContainerID != last.ContainerID {
		if rightName {
			return true, time.Time{}
		}
		return s.restarted(pod, status)
	}
	runsOn := last.Superseded != "" && rightName && status.State.Running != nil
	if tracked(pod) {
		return runsOn, time.Time{}
	}
	return runsOn, s.UpdateTimestamp.Add(settling)
}

// restarted says that the container was started after the spec changed, and from
// when on that is proof: a kubelet that was at work with the spec before may have
// started it, and will stop it again.
func (s State) restarted(pod *corev1.Pod, status *corev1.ContainerStatus) (bool, time.Time) {
	running := status.State.Running
	if running == nil || running.StartedAt.Time.Before(s.UpdateTimestamp.Truncate(time.Second)) {
		return false, time.Time{}
	}
	stopping := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		stopping = *pod.Spec.TerminationGracePeriodSeconds
	}
	return true, running.StartedAt.Add(time.Duration(stopping)*time.Second + settling)
}

// tracked says that the Pod's kubelet tells which spec it has seen.
func tracked(pod *corev1.Pod) bool { return pod.Status.ObservedGeneration > 0 }

// seen says that the kubelet has seen the Pod's spec as it is now.
func seen(pod *corev1.Pod) bool { return pod.Status.ObservedGeneration >= pod.Generation }

// Settled says whether the kubelet runs the Pod's spec as far as one can tell
// without a record of the update.
func Settled(pod *corev1.Pod) bool {
	if tracked(pod) {
		return seen(pod)
	}
	for i := range pod.Spec.Containers {
		status := statusOf(pod, pod.Spec.Containers[i].Name)
		if status == nil || !SameImage(status.Image, pod.Spec.Containers[i].Image) {
			return false
		}
	}
	return true
}

func statusOf(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func imageOf(pod *corev1.Pod, name string) string {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return list[i].Image
			}
		}
	}
	return ""
}
