// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// State is the record of a Pod's latest in-place update, kept in the annotation
// apps.kruise.io/inplace-update-state, in OpenKruise's form. Members that this
// version does not know are kept as long as the update goes on.
type State struct {
	// Revision that the update leads to.
	Revision string `json:"revision"`
	// UpdateTimestamp is when the Pod's spec was changed first.
	UpdateTimestamp metav1.Time `json:"updateTimestamp"`
	// LastContainerStatuses are the updated containers as they were before.
	LastContainerStatuses map[string]ContainerStatus `json:"lastContainerStatuses"`
	// UpdateImages says that container images changed.
	UpdateImages bool `json:"updateImages,omitempty"`
	// Resources are the cpu and memory that containers have to have by now. The
	// write of the record cannot set them, so they may still be missing.
	Resources map[string]corev1.ResourceRequirements `json:"containerResources,omitempty"`
	// NextContainerImages and NextContainerResources are for the containers whose
	// turn has not come.
	NextContainerImages    map[string]string                      `json:"nextContainerImages,omitempty"`
	NextContainerResources map[string]corev1.ResourceRequirements `json:"nextContainerResources,omitempty"`
	// NextContainerRefMetadata are the labels and annotations that the environment
	// of such a container refers to; only OpenKruise writes them.
	NextContainerRefMetadata map[string]RefMetadata `json:"nextContainerRefMetadata,omitempty"`
	// PreCheckBeforeNext is what has to be so before their turn comes.
	PreCheckBeforeNext *PreCheck `json:"preCheckBeforeNext,omitempty"`
	// ContainerBatchesRecord tells which containers were updated when.
	ContainerBatchesRecord []Batch `json:"containerBatchesRecord,omitempty"`
	// UpdateEnvFromMetadata is OpenKruise's.
	UpdateEnvFromMetadata bool `json:"updateEnvFromMetadata,omitempty"`

	// others are the members that this version does not know.
	others map[string]json.RawMessage
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
	// Updated is when the spec asked for another image; zero: with the update.
	Updated metav1.Time `json:"updated,omitzero"`
}

// RefMetadata are labels and annotations of the Pod.
type RefMetadata struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PreCheck is what has to be so before the next containers are updated.
type PreCheck struct {
	// ContainersRequiredReady are the containers that have to be ready.
	ContainersRequiredReady []string `json:"containersRequiredReady,omitempty"`
}

// Batch are containers that were updated together.
type Batch struct {
	// Timestamp is when their spec was changed.
	Timestamp  metav1.Time `json:"timestamp"`
	Containers []string    `json:"containers"`
}

// ParseState reads the annotation; an absent one gives the zero State.
func ParseState(annotation string) (State, error) {
	var state State
	if annotation == "" {
		return state, nil
	}
	err := errors.Join(json.Unmarshal([]byte(annotation), &state), json.Unmarshal([]byte(annotation), &state.others))
	if err != nil {
		return State{}, fmt.Errorf("annotation %s: %w", apps.AnnotationInPlaceUpdateState, err)
	}
	for _, name := range knownMembers() {
		delete(state.others, name)
	}
	return state, nil
}

// knownMembers are the names of State's members.
func knownMembers() []string {
	var names []string
	for field := range reflect.TypeFor[State]().Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// String encodes the record for the annotation.
func (s State) String() string {
	data, err := json.Marshal(s)
	if err == nil && len(s.others) > 0 {
		members := maps.Clone(s.others)
		if err = json.Unmarshal(data, &members); err == nil {
			data, err = json.Marshal(members)
		}
	}
	if err != nil { // texts, times, quantities and what was read from JSON always encode
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
	done, at := s.begunDone(pod, now)
	if s.next(pod).empty() && len(s.Resizes(pod)) == 0 {
		return done, at
	}
	if done {
		at = time.Time{}
	}
	return false, at
}

// begunDone is Done for the containers whose turn has come.
func (s State) begunDone(pod *corev1.Pod, now time.Time) (bool, time.Time) {
	if pod.Spec.NodeName == "" {
		return true, time.Time{} // no kubelet has it: it starts as it now is
	}
	if tracked(pod) && !seen(pod) {
		return false, time.Time{}
	}
	for name, want := range s.Resources {
		if containerOf(pod, name) != nil && !s.resized(pod, name, want) {
			return false, time.Time{}
		}
	}
	from := time.Time{}
	for name, last := range s.LastContainerStatuses {
		yes, at := s.imageRuns(pod, name, last)
		if !yes {
			return false, time.Time{}
		}
		if at.After(from) {
			from = at
		}
	}
	return !now.Before(from), from
}

// imageRuns says whether a container runs the image that the update asked for,
// or will have proved to from some time on.
func (s State) imageRuns(pod *corev1.Pod, name string, last ContainerStatus) (bool, time.Time) {
	status := statusOf(pod, name)
	if status == nil || status.ImageID == "" {
		return false, time.Time{}
	}
	return s.runs(pod, status, last)
}

// runs says whether one container is what the update asked for, or will have
// proved to be from some time on.
func (s State) runs(pod *corev1.Pod, status *corev1.ContainerStatus, last ContainerStatus) (bool, time.Time) {
	rightName := ran(status) && SameImage(status.Image, imageOf(pod, status.Name))
	if status.ImageID != last.ImageID {
		if last.Superseded == "" || rightName {
			return true, time.Time{}
		}
		// Passing through, or the same image by another name. The kubelet may pass
		// through any image that the spec asked for since the record was begun, and
		// only the last one is in the record.
		return s.restarted(pod, status, last)
	}
	// The image is the one from before. Either two names mean one image: then the
	// container has been restarted since. Or the update took back another one
	// before the kubelet acted on it: then the container just runs on.
	if last.ContainerID == "" || status.ContainerID != last.ContainerID {
		if rightName {
			return true, time.Time{}
		}
		return s.restarted(pod, status, last)
	}
	runsOn := last.Superseded != "" && rightName && status.State.Running != nil
	if tracked(pod) {
		return runsOn, time.Time{}
	}
	return runsOn, s.since(last).Add(settling)
}

// ran says that the status is of a container that runs, or did. A kubelet that
// cannot get an image may tell its name already, beside the ID of the one before.
func ran(status *corev1.ContainerStatus) bool {
	return status.State.Waiting == nil || status.State.Waiting.Reason == "CrashLoopBackOff"
}

// restarted says that the container was started after the spec changed, and from
// when on that is proof: a kubelet that was at work with the spec before may have
// started it, and will stop it again.
func (s State) restarted(pod *corev1.Pod, status *corev1.ContainerStatus, last ContainerStatus) (bool, time.Time) {
	running := status.State.Running
	if running == nil || running.StartedAt.Time.Before(s.since(last).Truncate(time.Second)) {
		return false, time.Time{}
	}
	stopping := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		stopping = *pod.Spec.TerminationGracePeriodSeconds
	}
	return true, running.StartedAt.Add(time.Duration(stopping)*time.Second + settling)
}

// since is when the image of a container was changed.
func (s State) since(last ContainerStatus) time.Time {
	if last.Updated.IsZero() {
		return s.UpdateTimestamp.Time
	}
	return last.Updated.Time
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
	if c := containerOf(pod, name); c != nil {
		return c.Image
	}
	return ""
}

// containerOf gives a container of the Pod's spec; nil if there is none.
func containerOf(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
