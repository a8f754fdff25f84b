// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// Step is one write of an in-place update: the new record, and what changes with it. The
// resources that the record asks for are written afterwards.
type Step struct {
	State State
	// Images are the new images by container.
	Images map[string]string
	// Labels and Annotations are new values by key.
	Labels, Annotations map[string]string
}

// desired is what containers should become.
type desired struct {
	images    map[string]string
	resources map[string]corev1.ResourceRequirements
}

func (w desired) empty() bool { return len(w.images)+len(w.resources) == 0 }

func (w desired) has(name string) bool {
	_, image := w.images[name]
	_, resources := w.resources[name]
	return image || resources
}

// names returns the sorted container names.
func (w desired) names() []string { return namesIn(w.images, w.resources) }

// only returns what is desired of some of the containers.
func (w desired) only(of func(name string) bool) desired {
	out := w.with(desired{})
	maps.DeleteFunc(out.images, func(name string, _ string) bool { return !of(name) })
	maps.DeleteFunc(out.resources, func(name string, _ corev1.ResourceRequirements) bool { return !of(name) })
	return out
}

// open returns what the Pod's spec does not have yet.
func (w desired) open(pod *corev1.Pod) desired {
	out := desired{map[string]string{}, map[string]corev1.ResourceRequirements{}}
	for name, image := range w.images {
		if c := ContainerOf(pod, name); c != nil && c.Image != image {
			out.images[name] = image
		}
	}
	for name, resources := range w.resources {
		if c := ContainerOf(pod, name); c != nil && differs(c.Resources, resources) {
			out.resources[name] = resources
		}
	}
	return out
}

// next returns the containers of a record that are not due yet.
func (s State) next(pod *corev1.Pod) desired {
	return desired{s.NextContainerImages, s.NextContainerResources}.open(pod)
}

// Begin returns the first step of an update that starts now. Unfinished parts of an
// earlier update are carried over: the kubelet may still be working on it, and containers
// that were not due yet still wait for it.
func Begin(pod *corev1.Pod, change *Change, revision string, now time.Time) Step {
	before := unfinished(pod, now)
	all := desired{before.NextContainerImages, before.NextContainerResources}.
		with(desired{nil, before.Resources}).with(desired{change.Images, change.Resources})
	open := all.open(pod)
	blocking := slices.DeleteFunc(before.unready(pod, before.begun(), now), open.has)
	first, rest := nextBatch(pod, open, blocking)
	state := State{
		Revision: revision, UpdateTimestamp: metav1.NewTime(now), UpdateImages: len(all.images) > 0,
		LastContainerStatuses: before.LastContainerStatuses, Resources: before.Resources,
		ContainerBatchesRecord: before.ContainerBatchesRecord,
	}.copied()
	// Include resources that the spec already has: the kubelet may be behind.
	maps.Copy(state.Resources, change.Resources)
	for name := range rest.resources {
		delete(state.Resources, name)
	}
	return state.step(pod, first, rest, blocking, now)
}

// copied is the record with its own maps.
func (s State) copied() State {
	last, resources := map[string]ContainerStatus{}, map[string]corev1.ResourceRequirements{}
	maps.Copy(last, s.LastContainerStatuses)
	maps.Copy(resources, s.Resources)
	s.LastContainerStatuses, s.Resources = last, resources
	s.ContainerBatchesRecord = slices.Clone(s.ContainerBatchesRecord)
	return s
}

// with adds what others desire, which wins.
func (w desired) with(others desired) desired {
	out := desired{map[string]string{}, map[string]corev1.ResourceRequirements{}}
	for _, part := range []desired{w, others} {
		maps.Copy(out.images, part.images)
		maps.Copy(out.resources, part.resources)
	}
	return out
}

// Next returns the step with which an update continues with its next containers; false if
// there are none, or they are not due yet.
func Next(pod *corev1.Pod, now time.Time) (Step, bool) {
	state, err := ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil || len(state.Waits(pod, now)) > 0 {
		return Step{}, false
	}
	open := state.next(pod)
	if open.empty() {
		return Step{}, false
	}
	first, rest := nextBatch(pod, open, nil)
	step := state.copied().step(pod, first, rest, nil, now)
	step.takeMetadata(first.names())
	return step, true
}

// step records that some containers are due, and what the rest waits for: these, and
// those that already blocked them.
func (s State) step(pod *corev1.Pod, first, rest desired, blocking []string, now time.Time) Step {
	for name := range first.images {
		s.LastContainerStatuses[name] = lastOf(pod, name, s.LastContainerStatuses, now)
	}
	maps.Copy(s.Resources, first.resources)
	s.NextContainerImages, s.NextContainerResources, s.PreCheckBeforeNext = rest.images, rest.resources, nil
	names := first.names()
	if !rest.empty() {
		top := highest(pod, rest.names())
		required := slices.DeleteFunc(append(blocking, names...), func(name string) bool { return priorityOf(pod, name) <= top })
		slices.Sort(required)
		s.PreCheckBeforeNext = &PreCheck{ContainersRequiredReady: required}
	}
	if len(names) > 0 {
		s.ContainerBatchesRecord = append(s.ContainerBatchesRecord, Batch{Timestamp: metav1.NewTime(now), Containers: names})
	}
	return Step{State: s, Images: first.images}
}

// takeMetadata moves the metadata that the environment of containers refers to from the
// record to the Pod.
func (s *Step) takeMetadata(names []string) {
	later := maps.Clone(s.State.NextContainerRefMetadata)
	s.Labels, s.Annotations = map[string]string{}, map[string]string{}
	for _, name := range names {
		maps.Copy(s.Labels, later[name].Labels)
		maps.Copy(s.Annotations, later[name].Annotations)
		delete(later, name)
	}
	s.State.NextContainerRefMetadata = later
}

// lastOf is what is kept of a container whose image changes.
func lastOf(pod *corev1.Pod, name string, known map[string]ContainerStatus, now time.Time) ContainerStatus {
	last := ContainerStatus{Updated: metav1.NewTime(now)}
	if status := StatusOf(pod, name); status != nil {
		last.ImageID, last.ContainerID, last.Image = status.ImageID, status.ContainerID, status.Image
	}
	if _, unfinished := known[name]; unfinished || last.ImageID == "" {
		last.Superseded = ImageOf(pod, name)
	}
	return last
}

// nextBatch splits the containers into those of the highest priority and those that wait. While a
// container of a higher priority than all of them is not ready yet, all wait. A Pod
// without a node needs no order.
func nextBatch(pod *corev1.Pod, open desired, blocking []string) (first, rest desired) {
	if open.empty() || pod.Spec.NodeName == "" {
		return open, desired{}
	}
	top := highest(pod, open.names())
	if slices.ContainsFunc(blocking, func(name string) bool { return priorityOf(pod, name) > top }) {
		return desired{}, open
	}
	return open.only(func(name string) bool { return priorityOf(pod, name) >= top }),
		open.only(func(name string) bool { return priorityOf(pod, name) < top })
}

// highest is the highest priority of some containers, at least one.
func highest(pod *corev1.Pod, names []string) int {
	top := priorityOf(pod, names[0])
	for _, name := range names[1:] {
		top = max(top, priorityOf(pod, name))
	}
	return top
}

// priorityOf is a container's launch priority. It cannot change during the life of a Pod,
// so it is read from the Pod's own spec.
func priorityOf(pod *corev1.Pod, name string) int {
	c := ContainerOf(pod, name)
	if c == nil {
		return 0
	}
	for i := range c.Env {
		if c.Env[i].Name == apps.EnvContainerPriority {
			priority, _ := priority(c.Env[i].Value)
			return priority
		}
	}
	return 0
}

// priority parses a launch priority; an unreadable one counts as 0.
func priority(text string) (int, bool) {
	value, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, false
	}
	return int(value), true
}

// unranked names the first container with an unreadable launch priority, if it changes
// together with others.
func unranked(to map[string]any, change *Change) string {
	all := desired{change.Images, change.Resources}
	if len(all.names()) < 2 {
		return ""
	}
	for _, c := range containers(to) {
		env, _ := c["env"].([]any)
		for _, entry := range env {
			variable, _ := entry.(map[string]any)
			text, _ := variable["value"].(string)
			_, ok := priority(text)
			if variable["name"] == apps.EnvContainerPriority && all.has(nameOf(c)) && !ok {
				return nameOf(c)
			}
		}
	}
	return ""
}

// UnderWay reports whether the record belongs to the Pod's present update: according to
// its state or, if someone removed that, to what it is out of service for. The record of
// a past update asks for nothing: whoever changed containers since, such as an
// autoscaler, did so on purpose.
func (s State) UnderWay(pod *corev1.Pod) bool {
	if apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) == apps.StateUpdating {
		return true
	}
	return s.Revision != "" && slices.ContainsFunc(pod.Status.Conditions, s.outFor)
}

// outFor reports whether the Pod is out of service for the record's update: the condition
// names it, or names an earlier one during which it began.
func (s State) outFor(c corev1.PodCondition) bool {
	return c.Type == apps.ConditionInPlaceUpdateReady && c.Status == corev1.ConditionFalse &&
		(c.Message == s.Revision || !s.UpdateTimestamp.Before(&c.LastTransitionTime))
}

// ImagesOnly returns the record without what asks for further writes.
func (s State) ImagesOnly() State {
	s.Resources, s.NextContainerImages, s.NextContainerResources = nil, nil, nil
	return s
}

// unfinished returns the record of an earlier update that is not done, or an empty one.
func unfinished(pod *corev1.Pod, now time.Time) State {
	before, err := ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil || !before.UnderWay(pod) {
		return State{}
	}
	if done, _ := before.Done(pod, now); done {
		return State{}
	}
	return before
}

// Waits lists, in order, the containers that must be done and ready before the update
// continues with the next ones; none if there are no next ones.
func (s State) Waits(pod *corev1.Pod, now time.Time) []string {
	if s.next(pod).empty() {
		return nil
	}
	if s.PreCheckBeforeNext == nil {
		return s.unready(pod, s.begun(), now)
	}
	return s.unready(pod, slices.Sorted(slices.Values(s.PreCheckBeforeNext.ContainersRequiredReady)), now)
}

// Pending lists, in order, the containers that are not due yet.
func (s State) Pending(pod *corev1.Pod) []string { return s.next(pod).names() }

// Resized lists, in order, the containers whose cpu or memory changes.
func (s State) Resized() []string { return slices.Sorted(maps.Keys(s.Resources)) }

// BatchSince is when the last containers were updated; zero if unknown.
func (s State) BatchSince() time.Time {
	if n := len(s.ContainerBatchesRecord); n > 0 {
		return s.ContainerBatchesRecord[n-1].Timestamp.Time
	}
	return s.UpdateTimestamp.Time
}

// begun lists, in order, the containers that have been due.
func (s State) begun() []string { return namesIn(s.LastContainerStatuses, s.Resources) }

// unready returns those of the containers that are not done, or not ready.
func (s State) unready(pod *corev1.Pod, names []string, now time.Time) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		if ContainerOf(pod, name) == nil {
			return true // it will never change
		}
		status := StatusOf(pod, name)
		return status != nil && status.Ready && s.containerDone(pod, name, now)
	})
}

// containerDone reports whether the kubelet has done what the record asks for with a
// container.
func (s State) containerDone(pod *corev1.Pod, name string, now time.Time) bool {
	if tracked(pod) && !seen(pod) {
		return false
	}
	if want, ok := s.Resources[name]; ok && !s.resized(pod, name, want) {
		return false
	}
	last, ok := s.LastContainerStatuses[name]
	if !ok {
		return true
	}
	yes, at := s.imageRuns(pod, name, last)
	return yes && !now.Before(at)
}
