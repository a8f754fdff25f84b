// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
)

// State is the record of a Pod's latest in-place update, kept in the annotation
// apps.kruise.io/inplace-update-state, in OpenKruise's form. Members that this version
// does not know are preserved as long as the update lasts.
type State struct {
	// Revision is the one that the update leads to.
	Revision string `json:"revision"`
	// UpdateTimestamp is when the Pod's spec was first changed.
	UpdateTimestamp metav1.Time `json:"updateTimestamp"`
	// Left is when the Pod began to leave its registries for the update; zero if no hook held it. Usher's own.
	Left metav1.Time `json:"left,omitzero"`
	// LastContainerStatuses are the updated containers as they were before.
	LastContainerStatuses map[string]ContainerStatus `json:"lastContainerStatuses"`
	// UpdateImages means that container images changed.
	UpdateImages bool `json:"updateImages,omitempty"`
	// Resources are the cpu and memory that containers must have by now. The write of the
	// record cannot set them, so they may still be missing.
	Resources map[string]corev1.ResourceRequirements `json:"containerResources,omitempty"`
	// NextContainerImages and NextContainerResources are for the containers that are not
	// due yet.
	NextContainerImages    map[string]string                      `json:"nextContainerImages,omitempty"`
	NextContainerResources map[string]corev1.ResourceRequirements `json:"nextContainerResources,omitempty"`
	// NextContainerRefMetadata are the labels and annotations that the environment of
	// such a container refers to; only OpenKruise writes them.
	NextContainerRefMetadata map[string]RefMetadata `json:"nextContainerRefMetadata,omitempty"`
	// PreCheckBeforeNext is the precondition for the next containers.
	PreCheckBeforeNext *PreCheck `json:"preCheckBeforeNext,omitempty"`
	// ContainerBatchesRecord records which containers were updated when.
	ContainerBatchesRecord []Batch `json:"containerBatchesRecord,omitempty"`
	// UpdateEnvFromMetadata is OpenKruise's.
	UpdateEnvFromMetadata bool `json:"updateEnvFromMetadata,omitempty"`

	// others are the members that this version does not know.
	others map[string]json.RawMessage
}

// ContainerStatus is the record of a container that is being replaced, as the kubelet reported it.
// OpenKruise writes only the image ID.
type ContainerStatus struct {
	ImageID     string `json:"imageID,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	Image       string `json:"image,omitempty"`
	// Superseded is the image that the spec asked for until now, if the kubelet had not
	// reached it yet: it may still pass through it, or never reach it.
	Superseded string `json:"superseded,omitempty"`
	// Updated is when the spec asked for another image; zero means with the update.
	Updated metav1.Time `json:"updated,omitzero"`
}

// RefMetadata are labels and annotations of the Pod.
type RefMetadata struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PreCheck is the precondition for updating the next containers.
type PreCheck struct {
	// ContainersRequiredReady are the containers that must be ready.
	ContainersRequiredReady []string `json:"containersRequiredReady,omitempty"`
}

// Batch is a group of containers that were updated together.
type Batch struct {
	// Timestamp is when their spec was changed.
	Timestamp  metav1.Time `json:"timestamp"`
	Containers []string    `json:"containers"`
}

// parsed caches the States of the annotations that were read last: each is read several times in a row
// while its containers restart. A State takes some 2 KiB. Annotations of more than maxKept bytes, which
// Usher does not write, are not kept.
var parsed = lru.New(256)

const maxKept = 16 << 10

// ParseState parses the annotation; an absent one yields the zero State. Do not change its maps.
func ParseState(annotation string) (State, error) {
	var state State
	if annotation == "" {
		return state, nil
	}
	if known, ok := parsed.Get(annotation); ok {
		return known.(State), nil
	}
	unknown, err := kjson.UnmarshalStrict([]byte(annotation), &state)
	if err == nil && len(unknown) > 0 { // else once is enough: most of what a pass reads of a Pod is this
		err = json.Unmarshal([]byte(annotation), &state.others)
	}
	if err != nil {
		return State{}, fmt.Errorf("annotation %s: %w", apps.AnnotationInPlaceUpdateState, err)
	}
	maps.DeleteFunc(state.others, func(name string, _ json.RawMessage) bool { return knownMembers()[name] })
	if len(annotation) <= maxKept {
		parsed.Add(annotation, state)
	}
	return state, nil
}

// knownMembers are the names of State's members.
var knownMembers = sync.OnceValue(func() map[string]bool {
	names := map[string]bool{}
	for field := range reflect.TypeFor[State]().Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			names[name] = true
		}
	}
	return names
})

// String encodes the record for the annotation.
func (s State) String() string {
	data := encode.JSON(s)
	if len(s.others) == 0 {
		return string(data)
	}
	members := maps.Clone(s.others)
	_ = json.Unmarshal(data, &members) // data was encoded just now
	return string(encode.JSON(members))
}

// stableAfter is how long a container must keep running, beyond the time that it may take to stop,
// before it counts as the final one if image names cannot decide.
const stableAfter = 10 * time.Second

// Done reports whether the kubelet runs what the update asked for; if time alone will
// decide, it also returns when. It does not check whether the containers are ready.
func (s State) Done(pod *corev1.Pod, now time.Time) (bool, time.Time) {
	done, at := s.begunDone(pod, now)
	return done && !s.next(pod).Drains() && len(s.Resizes(pod)) == 0, at
}

// begunDone is Done for the containers that have been due.
func (s State) begunDone(pod *corev1.Pod, now time.Time) (bool, time.Time) {
	if pod.Spec.NodeName == "" {
		return true, time.Time{} // no kubelet has it: it starts with its present spec
	}
	if behind(pod) {
		return false, time.Time{}
	}
	from := time.Time{}
	for _, name := range s.begun() {
		yes, at := s.containerDone(pod, name)
		if !yes {
			return false, time.Time{}
		}
		from = list.Latest(from, at)
	}
	if now.Before(from) {
		return false, from
	}
	return true, time.Time{}
}

// imageRuns reports whether a container runs the image that the update asked for, or from
// when on this will be proven.
func (s State) imageRuns(pod *corev1.Pod, status *corev1.ContainerStatus, last ContainerStatus) (bool, time.Time) {
	rightName := ran(status) && SameImage(status.Image, ImageOf(pod, status.Name))
	if status.ImageID != last.ImageID {
		if last.Superseded == "" || rightName {
			return true, time.Time{}
		}
		// Passing through, or the same image by another name. The kubelet may pass
		// through any image that the spec asked for since the record was begun, and only
		// the last one is in the record.
		return s.settled(pod, status, last)
	}
	return s.previousRuns(pod, status, last, rightName)
}

// previousRuns is imageRuns of a container whose image is the previous one. Either two names mean one
// image: then the container has been restarted since. Or the update reverted another one before the
// kubelet acted on it: then the container just keeps running.
func (s State) previousRuns(pod *corev1.Pod, status *corev1.ContainerStatus, last ContainerStatus, rightName bool) (bool, time.Time) {
	if last.ContainerID == "" || status.ContainerID != last.ContainerID {
		switch restarted := last.ContainerID != "" && last.Superseded == "" && tracked(pod); {
		case rightName:
			return true, time.Time{}
		case restarted: // since the kubelet has observed the spec; it may report the image by its old name
			return ran(status), time.Time{}
		}
		return s.settled(pod, status, last)
	}
	runsOn := last.Superseded != "" && rightName && status.State.Running != nil
	if tracked(pod) {
		return runsOn, time.Time{}
	}
	return runsOn, s.since(last).Add(stableAfter)
}

// ran reports whether the status is of a container that runs, or did. A kubelet that
// cannot get an image may already report its name, with the ID of the previous one.
func ran(status *corev1.ContainerStatus) bool {
	return status.State.Waiting == nil || status.State.Waiting.Reason == "CrashLoopBackOff"
}

// settled reports whether the container runs, and from when on that is proof: a kubelet that was
// working on a previous spec may have started it, and will stop it again. When it was started says
// little, since the kubelet's clock may be early or late: the time counts from the change of the spec.
// Only where nothing else shows that it was restarted, neither an ID nor what the kubelet has observed,
// must it have been started since then.
func (s State) settled(pod *corev1.Pod, status *corev1.ContainerStatus, last ContainerStatus) (bool, time.Time) {
	running := status.State.Running
	unknown := last.ContainerID == "" && !tracked(pod)
	if running == nil || unknown && running.StartedAt.Time.Before(s.since(last).Truncate(time.Second)) {
		return false, time.Time{}
	}
	stopping := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	return true, s.since(last).Add(time.Duration(stopping)*time.Second + stableAfter)
}

// since returns when the image of a container was changed.
func (s State) since(last ContainerStatus) time.Time {
	if last.Updated.IsZero() {
		return s.UpdateTimestamp.Time
	}
	return last.Updated.Time
}

// tracked reports whether the Pod's kubelet reports which spec it has observed.
func tracked(pod *corev1.Pod) bool { return pod.Status.ObservedGeneration > 0 }

// behind reports whether the kubelet is known not to have observed the Pod's present spec.
func behind(pod *corev1.Pod) bool {
	return tracked(pod) && pod.Status.ObservedGeneration < pod.Generation
}

// RunsSpec reports whether the kubelet runs the Pod's spec, as far as can be known without
// a record of the update.
func RunsSpec(pod *corev1.Pod) bool {
	if tracked(pod) {
		return !behind(pod)
	}
	for i := range pod.Spec.Containers {
		status := StatusOf(pod, pod.Spec.Containers[i].Name)
		if status == nil || !SameImage(status.Image, pod.Spec.Containers[i].Image) {
			return false
		}
	}
	return true
}

// StatusOf returns the status of a container of the Pod; nil if there is none.
func StatusOf(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	is := func(s *corev1.ContainerStatus) bool { return s.Name == name }
	return cmp.Or(list.Find(pod.Status.ContainerStatuses, is), list.Find(pod.Status.InitContainerStatuses, is))
}

// ImageOf returns the image that the Pod's spec asks for in a container; "" if there is no
// such container.
func ImageOf(pod *corev1.Pod, name string) string {
	return ptr.Deref(ContainerOf(pod, name), corev1.Container{}).Image
}

// ContainerOf returns a container of the Pod's spec; nil if there is none.
func ContainerOf(pod *corev1.Pod, name string) *corev1.Container {
	is := func(c *corev1.Container) bool { return c.Name == name }
	return cmp.Or(list.Find(pod.Spec.Containers, is), list.Find(pod.Spec.InitContainers, is))
}
