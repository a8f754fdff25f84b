// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
}

// NewState makes the record of an update that starts now.
func NewState(change *Change, revision string, statuses []corev1.ContainerStatus, now time.Time) State {
	state := State{
		Revision: revision, UpdateTimestamp: metav1.NewTime(now),
		LastContainerStatuses: map[string]ContainerStatus{}, UpdateImages: len(change.Images) > 0,
	}
	for i := range statuses {
		if _, ok := change.Images[statuses[i].Name]; ok {
			state.LastContainerStatuses[statuses[i].Name] = ContainerStatus{
				ImageID: statuses[i].ImageID, ContainerID: statuses[i].ContainerID, Image: statuses[i].Image,
			}
		}
	}
	return state
}

// ParseState reads the annotation; an absent one gives the zero State.
func ParseState(annotation string) (State, error) {
	var state State
	if annotation == "" {
		return state, nil
	}
	if err := json.Unmarshal([]byte(annotation), &state); err != nil {
		return State{}, fmt.Errorf("annotation inplace-update-state: %w", err)
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

// Done says whether the kubelet runs what the update asked for. It does not ask
// whether the containers are ready.
func (s State) Done(pod *corev1.Pod) bool {
	for name, last := range s.LastContainerStatuses {
		status := statusOf(pod.Status.ContainerStatuses, name)
		if status == nil || status.ImageID == "" {
			return false
		}
		if status.ImageID == last.ImageID && !doneWithSameImage(pod, status, last) {
			return false
		}
	}
	return true
}

// doneWithSameImage tells when an update is done that leaves the image ID as it
// was. Either two names mean one image: then the container has been restarted
// under the new name. Or the update was taken back before the kubelet acted on
// it: then the container just runs on, once the kubelet has seen the last spec.
func doneWithSameImage(pod *corev1.Pod, status *corev1.ContainerStatus, last ContainerStatus) bool {
	wanted := imageOf(pod.Spec.Containers, status.Name)
	if !SameImage(status.Image, wanted) {
		return false
	}
	if last.ContainerID == "" || status.ContainerID != last.ContainerID {
		return status.ContainerID != ""
	}
	return SameImage(last.Image, wanted) && pod.Status.ObservedGeneration >= pod.Generation
}

func statusOf(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

func imageOf(containers []corev1.Container, name string) string {
	for i := range containers {
		if containers[i].Name == name {
			return containers[i].Image
		}
	}
	return ""
}

// SameImage compares two image names. A name without tag and digest means
// ":latest", a name without a registry means Docker's; the colon of a
// registry's port is not a tag's.
func SameImage(a, b string) bool { return a == b || canonicalImage(a) == canonicalImage(b) }

func canonicalImage(name string) string {
	if name == "" {
		return ""
	}
	if !strings.Contains(name, "@") && strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		name += ":latest"
	}
	host, rest, found := strings.Cut(name, "/")
	switch {
	case !found:
		return "docker.io/library/" + name
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		return "docker.io/" + name
	case host == "index.docker.io":
		return "docker.io/" + rest
	}
	return name
}
