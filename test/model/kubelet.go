// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/podread"
)

// Node describes the node of a kubelet.
type Node struct {
	// Broken holds the images that never start.
	Broken map[string]bool
	// Roomy nodes have enough for every request.
	Roomy bool
}

// Run has the containers of a Pod that a kubelet runs.
type Run struct {
	// Generation is the generation of the spec that the kubelet acts on; 0 is none.
	Generation int64
	// Started reports whether all containers have run.
	Started bool
	// Containers are in the order of the spec.
	Containers []Container
}

// Container is the kubelet's state of a container.
type Container struct {
	// Image and ID are those of the container that runs or, if none runs, that ran last.
	Image, ID string
	Restarts  int32
	Up        bool
	Since     time.Time
	// Needs is the variable without a value that keeps the container from being created; "" if none does.
	Needs string
	// Starting is the image that the kubelet is going to start; "" if it starts none.
	Starting string
	// Stuck reports whether the kubelet has reported that the container waits for its
	// image; the report carries the resources it will have, even if it is late.
	Stuck bool
	// Resources are its present resources, Wanted those of the spec that the kubelet
	// acts on, and Allocated those that the kubelet has reserved.
	Resources, Wanted corev1.ResourceRequirements
	Allocated         corev1.ResourceList
	Resizing          bool
}

// Clone copies what can change.
func (r *Run) Clone() *Run {
	out := *r
	out.Containers = slices.Clone(r.Containers)
	return &out
}

// Step is the next step of the scheduler or a kubelet with a Pod.
type Step string

// The steps.
const (
	// Wait does nothing: the Pod has failed, or waits for another actor.
	Wait Step = "wait"
	// Bind assigns a node.
	Bind Step = "bind"
	// Sync makes the containers follow the spec, and reports them.
	Sync Step = "sync"
	// Stop stops the containers of a Pod that is being deleted, and then removes it.
	Stop Step = "stop"
)

// Next returns the next step of a Pod.
func Next(pod *corev1.Pod) Step {
	switch {
	case pod.DeletionTimestamp != nil && (pod.Spec.NodeName == "" || *pod.DeletionGracePeriodSeconds == 0):
		return Wait // for its finalizers
	case pod.DeletionTimestamp != nil:
		return Stop
	case pod.Spec.NodeName == "":
		return Bind
	case pod.Status.Phase == corev1.PodFailed:
		return Wait
	}
	return Sync
}

// Task is work of a kubelet that takes some time: it starts or resizes a container.
type Task struct {
	Container int
	// Image is the image to start; "" for a resize.
	Image string
}

// Sync makes the kubelet act on the present spec of its Pod. It stops containers that
// have to change, and returns the tasks that begin.
func (r *Run) Sync(pod *corev1.Pod, node Node) []Task {
	r.Generation = pod.Generation
	if len(r.Containers) == 0 {
		r.Containers = make([]Container, len(pod.Spec.Containers))
	}
	var tasks []Task
	for i := range r.Containers {
		if c := &r.Containers[i]; c.ID == "" {
			if c.Needs = Lacks(pod, &pod.Spec.Containers[i]); c.Needs != "" {
				continue
			}
		}
		tasks = append(tasks, r.start(i, pod.Spec.Containers[i].Image)...)
		tasks = append(tasks, r.resize(i, &pod.Spec.Containers[i], node)...)
	}
	return tasks
}

// Lacks returns the variable without a value that a path of a mount refers to, if it comes from an annotation;
// "" if there is none. A kubelet does not create such a container.
func Lacks(pod *corev1.Pod, c *corev1.Container) string {
	for _, v := range c.Env {
		refers := func(m corev1.VolumeMount) bool { return strings.Contains(m.SubPathExpr, "$("+v.Name+")") }
		if v.ValueFrom == nil || v.ValueFrom.FieldRef == nil || !slices.ContainsFunc(c.VolumeMounts, refers) {
			continue
		}
		key, ofAnnotation := strings.CutPrefix(v.ValueFrom.FieldRef.FieldPath, "metadata.annotations['")
		if ofAnnotation && pod.Annotations[strings.TrimSuffix(key, "']")] == "" {
			return v.Name
		}
	}
	return ""
}

// NotCreated is how a kubelet reports a container that lacks a variable.
func NotCreated(variable string) *corev1.ContainerStateWaiting {
	return &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: "missing value for " + variable}
}

func (r *Run) start(i int, image string) []Task {
	c := &r.Containers[i]
	if (c.Up && c.Image == image) || c.Starting == image {
		return nil
	}
	c.Up, c.Starting = false, image
	return []Task{{Container: i, Image: image}}
}

// Start completes the start of a container, which gets the next ID.
func (r *Run) Start(i int, id string, now time.Time) {
	c := &r.Containers[i]
	if c.ID != "" {
		c.Restarts++
	}
	c.Image, c.ID, c.Up, c.Since, c.Starting, c.Stuck = c.Starting, id, true, now, "", false
	c.Resources, c.Allocated = c.Wanted, c.Wanted.Requests
	r.Started = r.Started || r.up()
}

func (r *Run) up() bool {
	return !slices.ContainsFunc(r.Containers, func(c Container) bool { return !c.Up })
}

// End ends all containers.
func (r *Run) End() {
	for i := range r.Containers {
		r.Containers[i].Up = false
	}
}

// Report returns the kubelet's change of the status of a Pod: it describes the present, even if it
// arrives later.
func (r *Run) Report(pod *corev1.Pod, node Node) func(pod *corev1.Pod, now time.Time) {
	statuses := make([]corev1.ContainerStatus, len(r.Containers))
	for i := range r.Containers {
		statuses[i] = r.Containers[i].status(&pod.Spec.Containers[i], node)
	}
	pending, resizing := r.resizeConditions(node)
	closed := func(g corev1.PodReadinessGate) bool { return !podread.IsTrue(pod, g.ConditionType) }
	up, ready, started, generation := r.up(), r.up() && !slices.ContainsFunc(pod.Spec.ReadinessGates, closed), r.Started, r.Generation
	return func(pod *corev1.Pod, now time.Time) {
		if started {
			pod.Status.Phase = corev1.PodRunning
		}
		pod.Status.ContainerStatuses, pod.Status.ObservedGeneration = statuses, generation
		setResizeConditions(pod, pending, resizing, now)
		SetCondition(pod, corev1.ContainersReady, up, now)
		SetCondition(pod, corev1.PodReady, ready && pod.DeletionTimestamp == nil, now)
	}
}

func (c *Container) status(want *corev1.Container, node Node) corev1.ContainerStatus {
	started := c.Up
	status := corev1.ContainerStatus{
		Name: want.Name, Ready: c.Up, Started: &started, RestartCount: c.Restarts, ContainerID: c.ID, Image: want.Image,
	}
	if c.ID != "" {
		status.ImageID, status.Image = ImageID(c.Image), c.Image
	}
	status.Resources, status.AllocatedResources = c.reported()
	switch {
	case c.Up:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: seconds(c.Since)}
	case c.Needs != "":
		status.State.Waiting = NotCreated(c.Needs)
	case node.Broken[c.Starting]:
		c.Stuck, status.Image = true, c.Starting
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}
	default:
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	return status
}

// ImageID is equal for two names of one image: "app:2" and "app:2-alias".
func ImageID(image string) string { return "sha256:" + strings.TrimSuffix(image, "-alias") }

// Evict fails a Pod, like a kubelet that runs out of memory or disk.
func Evict(pod *corev1.Pod, now time.Time) {
	pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted"
	SetCondition(pod, corev1.PodReady, false, now)
}

// Reject fails a Pod, like a kubelet that does not admit it.
func Reject(pod *corev1.Pod) {
	pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "UnexpectedAdmissionError"
	pod.Status.Message = "Pod was rejected: Allocate failed due to no healthy devices present"
}

// Lacks describes how a container that ran before differs from its spec; "" if it does
// not.
func (r *Run) Lacks(i int, want *corev1.Container) string {
	if i >= len(r.Containers) {
		return ""
	}
	switch c := &r.Containers[i]; {
	case c.ID == "":
	case c.Image != want.Image:
		return fmt.Sprintf("does not run %s yet", want.Image)
	case !SameResources(c.has(), want.Resources):
		return fmt.Sprintf("does not have %s yet", ResourcesText(want.Resources))
	}
	return ""
}

// Orphan stands for the owner of an object without a controller.
const Orphan = "orphan"

// OwnerOf returns the UID of the object's controller.
func OwnerOf(object client.Object) string {
	if owner := metav1.GetControllerOf(object); owner != nil {
		return string(owner.UID)
	}
	return Orphan
}

// State returns a Pod's lifecycle state.
func State(pod client.Object) apps.LifecycleState {
	if s := apps.LifecycleState(pod.GetLabels()[apps.LabelLifecycleState]); s != "" {
		return s
	}
	return apps.StateNormal
}

// Active reports whether a Pod has neither ended nor is being deleted.
func Active(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded
}

// Condition returns a condition of a Pod; the zero condition if there is none of that type.
func Condition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	return ptr.Deref(podread.Condition(pod, kind), corev1.PodCondition{})
}

// SetCondition writes a condition as a kubelet does.
func SetCondition(pod *corev1.Pod, kind corev1.PodConditionType, yes bool, now time.Time) {
	status := corev1.ConditionFalse
	if yes {
		status = corev1.ConditionTrue
	}
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind})
		i = len(pod.Status.Conditions) - 1
	}
	if c := &pod.Status.Conditions[i]; c.Status != status {
		c.Status, c.LastTransitionTime = status, seconds(now)
	}
}

// seconds returns a time as the API stores it.
func seconds(at time.Time) metav1.Time { return metav1.NewTime(at.Truncate(time.Second)) }

// ContainerStatus returns the status of a container; the zero status if there is none.
func ContainerStatus(pod *corev1.Pod, name string) corev1.ContainerStatus {
	return ptr.Deref(inplace.StatusOf(pod, name), corev1.ContainerStatus{})
}
