// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The capacity of the nodes: more than most is never available, more than spare not
// now. New Pods get all they request, because that is not a kubelet resize.
var most, spare = resource.MustParse("900m"), resource.MustParse("600m")

// refuses returns why the kubelet refuses a container its resources; "" if it does not.
func (n Node) refuses(want corev1.ResourceRequirements) string {
	cpu := want.Requests.Cpu()
	switch {
	case n.Roomy:
		return ""
	case cpu.Cmp(most) > 0:
		return corev1.PodReasonInfeasible
	case cpu.Cmp(spare) > 0:
		return corev1.PodReasonDeferred
	}
	return ""
}

// resize begins to change the resources of a running container.
func (r *Run) resize(i int, want *corev1.Container, node Node) []Task {
	c := &r.Containers[i]
	c.Wanted = *want.Resources.DeepCopy()
	if !c.Up || SameResources(c.Resources, c.Wanted) || node.refuses(c.Wanted) != "" {
		return nil
	}
	c.Allocated = c.Wanted.Requests
	if c.Resizing {
		return nil
	}
	c.Resizing = true
	return []Task{{Container: i}}
}

// Resize ends a resize. If the container has to restart for it, its start begins; done
// is false if the resize comes to nothing.
func (r *Run) Resize(i int, pod *corev1.Pod, node Node) (tasks []Task, done bool) {
	c, want := &r.Containers[i], &pod.Spec.Containers[i]
	c.Resizing = false
	if !c.Up || node.refuses(c.Wanted) != "" || pod.DeletionTimestamp != nil {
		return nil, false
	}
	if c.restartsFor(want) {
		c.Up = false
		return r.start(i, want.Image), true
	}
	c.Resources = c.Wanted
	return nil, true
}

// restartsFor reports whether the container has to restart to get its resources.
func (c *Container) restartsFor(want *corev1.Container) bool {
	return slices.ContainsFunc(want.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		has, wanted := c.Resources.Requests[p.ResourceName], c.Wanted.Requests[p.ResourceName]
		return p.RestartPolicy == corev1.RestartContainer && has.Cmp(wanted) != 0
	})
}

// has returns the resources that a container has, or will have once its image is
// available.
func (c *Container) has() corev1.ResourceRequirements {
	if c.Stuck {
		return c.Wanted
	}
	return c.Resources
}

// reported returns the resources that the kubelet reports for a container; for one that
// does not run, it reports those that it will have.
func (c *Container) reported() (*corev1.ResourceRequirements, corev1.ResourceList) {
	if c.Up {
		return c.Resources.DeepCopy(), c.Allocated.DeepCopy()
	}
	return c.Wanted.DeepCopy(), c.Wanted.Requests.DeepCopy()
}

// resizeConditions describe why a resize of the Pod waits, and whether one is under
// way.
func (r *Run) resizeConditions(node Node) (pending string, resizing bool) {
	for i := range r.Containers {
		c := &r.Containers[i]
		if !c.Up || SameResources(c.Resources, c.Wanted) {
			continue
		}
		if why := node.refuses(c.Wanted); why != "" {
			pending = why
		} else {
			resizing = true
		}
	}
	return pending, resizing
}

func setResizeConditions(pod *corev1.Pod, pending string, resizing bool, now time.Time) {
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
	})
	if pending != "" {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: pending, LastTransitionTime: seconds(now),
			Message: "Node didn't have enough capacity: cpu",
		})
	}
	if resizing {
		SetCondition(pod, corev1.PodResizeInProgress, true, now)
	}
}

// SameResources compares requests and limits.
func SameResources(a, b corev1.ResourceRequirements) bool {
	return equality.Semantic.DeepEqual(a.Requests, b.Requests) && equality.Semantic.DeepEqual(a.Limits, b.Limits)
}

// ResourcesText describes requests.
func ResourcesText(r corev1.ResourceRequirements) string {
	var parts []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := r.Requests[name]; ok {
			parts = append(parts, fmt.Sprintf("%s %s", name, q.String()))
		}
	}
	return strings.Join(parts, " and ")
}
