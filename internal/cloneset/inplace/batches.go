// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
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

// only returns the part of the change that concerns some of the containers.
func (c Change) only(of func(name string) bool) Change {
	out := c.with(Change{})
	maps.DeleteFunc(out.Images, func(name string, _ string) bool { return !of(name) })
	maps.DeleteFunc(out.Resources, func(name string, _ corev1.ResourceRequirements) bool { return !of(name) })
	return out
}

// with adds another change of containers. Where both change one, the other change wins.
func (c Change) with(other Change) Change {
	return Change{Images: merged(c.Images, other.Images), Resources: merged(c.Resources, other.Resources)}
}

// open returns the part of the change that the Pod's containers do not have yet.
func (c Change) open(pod *corev1.Pod) Change {
	out := c.with(Change{})
	maps.DeleteFunc(out.Images, func(name, image string) bool {
		is := ContainerOf(pod, name)
		return is == nil || is.Image == image
	})
	maps.DeleteFunc(out.Resources, func(name string, resources corev1.ResourceRequirements) bool {
		is := ContainerOf(pod, name)
		return is == nil || !differs(is.Resources, resources)
	})
	return out
}

// merged merges maps; the last one wins.
func merged[M ~map[K]V, K comparable, V any](all ...M) M {
	out := M{}
	for _, one := range all {
		maps.Copy(out, one)
	}
	return out
}

// next returns the containers of a record that are not due yet.
func (s State) next(pod *corev1.Pod) Change {
	return Change{Images: s.NextContainerImages, Resources: s.NextContainerResources}.open(pod)
}

// Begin returns the first step of an update that starts now. Unfinished parts of an
// earlier update are carried over: the kubelet may still be working on it, and containers
// that were not due yet still wait for it.
func Begin(pod *corev1.Pod, change *Change, revision string, now time.Time) Step {
	before := unfinished(pod, now)
	all := Change{Images: before.NextContainerImages, Resources: merged(before.NextContainerResources, before.Resources)}.with(*change)
	open := all.open(pod)
	touched := open.names()
	blocking := slices.DeleteFunc(before.unready(pod, before.begun(), now), func(name string) bool { return slices.Contains(touched, name) })
	first, rest := nextBatch(pod, open, blocking)
	state := State{
		Revision: revision, UpdateTimestamp: metav1.NewTime(now), Left: before.leftBy(pod), UpdateImages: len(all.Images) > 0,
		LastContainerStatuses: before.LastContainerStatuses, Resources: before.Resources,
		ContainerBatchesRecord: before.ContainerBatchesRecord,
	}.copied()
	// Include resources that the spec already has: the kubelet may be behind.
	maps.Copy(state.Resources, change.Resources)
	for name := range rest.Resources {
		delete(state.Resources, name)
	}
	return state.step(pod, first, rest, blocking, now)
}

// Whole returns an update, for a trial, as if all its containers were due at once: its record is at
// least as large as that of each step.
func Whole(pod *corev1.Pod, change *Change, revision string, now time.Time) Step {
	first := Begin(pod, change, revision, now)
	rest := first.State.next(pod)
	whole := first.State.copied().step(pod, rest, Change{}, nil, now)
	whole.Images = merged(first.Images, rest.Images)
	whole.State.NextContainerImages, whole.State.NextContainerResources = rest.Images, rest.Resources
	return whole
}

// copied returns a copy of the record with its own maps.
func (s State) copied() State {
	s.LastContainerStatuses, s.Resources = merged(s.LastContainerStatuses), merged(s.Resources)
	s.ContainerBatchesRecord = slices.Clone(s.ContainerBatchesRecord)
	return s
}

// Next returns the step with which an update continues with its next containers; false if
// there are none, or they are not due yet.
func Next(pod *corev1.Pod, now time.Time) (Step, bool) {
	state, err := ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil || len(state.Waits(pod, now)) > 0 {
		return Step{}, false
	}
	open := state.next(pod)
	if !open.Drains() {
		return Step{}, false
	}
	first, rest := nextBatch(pod, open, nil)
	step := state.copied().step(pod, first, rest, nil, now)
	step.takeMetadata(first.names())
	return step, true
}

// step records that the first containers are due, and which containers the rest waits for: the first
// ones, and those that already blocked it.
func (s State) step(pod *corev1.Pod, first, rest Change, blocking []string, now time.Time) Step {
	for name := range first.Images {
		s.LastContainerStatuses[name] = lastOf(pod, name, s.LastContainerStatuses, now)
	}
	maps.Copy(s.Resources, first.Resources)
	s.NextContainerImages, s.NextContainerResources, s.PreCheckBeforeNext = rest.Images, rest.Resources, nil
	names := first.names()
	if rest.Drains() {
		top := highest(pod, rest.names())
		required := slices.DeleteFunc(append(blocking, names...), func(name string) bool { return priorityOf(pod, name) <= top })
		slices.Sort(required)
		s.PreCheckBeforeNext = &PreCheck{ContainersRequiredReady: required}
	}
	if len(names) > 0 {
		s.ContainerBatchesRecord = append(s.ContainerBatchesRecord, Batch{Timestamp: metav1.NewTime(now), Containers: names})
	}
	return Step{State: s, Images: first.Images}
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

// lastOf returns the record of a container whose image changes, as it was before.
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
func nextBatch(pod *corev1.Pod, open Change, blocking []string) (first, rest Change) {
	if !open.Drains() || pod.Spec.NodeName == "" {
		return open, Change{}
	}
	top := highest(pod, open.names())
	if slices.ContainsFunc(blocking, func(name string) bool { return priorityOf(pod, name) > top }) {
		return Change{}, open
	}
	return open.only(func(name string) bool { return priorityOf(pod, name) >= top }),
		open.only(func(name string) bool { return priorityOf(pod, name) < top })
}

// highest returns the highest priority of some containers, at least one.
func highest(pod *corev1.Pod, names []string) int64 {
	return slices.Max(list.Map(names, func(name string) int64 { return priorityOf(pod, name) }))
}

// priorityOf returns a container's launch priority. It cannot change during the life of a Pod, so it is
// read from the Pod's own spec.
func priorityOf(pod *corev1.Pod, name string) int64 {
	return Priority(ptr.To(ptr.Deref(ContainerOf(pod, name), corev1.Container{})))
}

// Priority returns a container's launch priority; 0 if it has none, or it is not a number.
func Priority(c *corev1.Container) int64 {
	priority, _ := priorityIn(c.Env)
	return priority
}

// priorityIn reads the launch priority in a container's environment. A priority that is not a number is
// an error, and counts as 0.
func priorityIn(env []corev1.EnvVar) (int64, error) {
	at := slices.IndexFunc(env, func(v corev1.EnvVar) bool { return v.Name == apps.EnvContainerPriority })
	if at < 0 {
		return 0, nil
	}
	return ParsePriority(env[at].Value)
}

// ParsePriority reads a launch priority. One that is not a number is an error, and counts as 0.
func ParsePriority(text string) (int64, error) {
	priority, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, err
	}
	return priority, nil
}

// unranked names the first container with an unreadable launch priority, if it changes
// together with others.
func unranked(to *corev1.PodSpec, change *Change) string {
	names := change.names()
	for _, c := range lasting(to) {
		if _, err := priorityIn(c.Env); err != nil && len(names) > 1 && slices.Contains(names, c.Name) {
			return c.Name
		}
	}
	return ""
}

// UnderWay reports whether the record belongs to the Pod's present update: according to its state or,
// if someone removed that, to the revision in the condition that keeps it out of service. The record of
// a past update asks for nothing: later changes of containers, for example by an autoscaler, were made
// on purpose.
func (s State) UnderWay(pod *corev1.Pod) bool {
	if apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) == apps.StateUpdating {
		return true
	}
	// Its condition names this update, or an earlier one during which it began.
	c := podread.Condition(pod, apps.ConditionInPlaceUpdateReady)
	return s.Revision != "" && c != nil && c.Status == corev1.ConditionFalse &&
		(c.Message == s.Revision || !s.UpdateTimestamp.Before(&c.LastTransitionTime))
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

// leftBy returns when a Pod began to leave its registries for the update that begins now. The record is
// that of an earlier update that is not done, or empty.
func (s State) leftBy(pod *corev1.Pod) metav1.Time {
	if apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) == apps.StatePreparingUpdate {
		return metav1.NewTime(podread.StateSince(pod))
	}
	return s.Left
}

// Waits lists, in order, the containers that must be done and ready before the update
// continues with the next ones; none if there are no next ones.
func (s State) Waits(pod *corev1.Pod, now time.Time) []string {
	if !s.next(pod).Drains() {
		return nil
	}
	if s.PreCheckBeforeNext == nil {
		return s.unready(pod, s.begun(), now)
	}
	return s.unready(pod, slices.Sorted(slices.Values(s.PreCheckBeforeNext.ContainersRequiredReady)), now)
}

// Pending lists, in order, the containers that are not due yet.
func (s State) Pending(pod *corev1.Pod) []string { return s.next(pod).names() }

// BatchSince returns when the last containers were updated; zero if unknown.
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
		if status := StatusOf(pod, name); behind(pod) || status == nil || !status.Ready {
			return false
		}
		done, at := s.containerDone(pod, name)
		return done && !now.Before(at)
	})
}

// containerDone reports whether the kubelet has done what the record asks for with a container, or from
// when on that will be certain.
func (s State) containerDone(pod *corev1.Pod, name string) (bool, time.Time) {
	if want, ok := s.Resources[name]; ok && ContainerOf(pod, name) != nil && !s.resized(pod, name, want) {
		return false, time.Time{}
	}
	last, ok := s.LastContainerStatuses[name]
	if !ok {
		return true, time.Time{}
	}
	status := StatusOf(pod, name)
	if status == nil || status.ImageID == "" {
		return false, time.Time{}
	}
	return s.imageRuns(pod, status, last)
}
