// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// confineResize lets the resize subresource change only resources.
func confineResize(old, next *corev1.Pod) error {
	containers := next.Spec.Containers
	next.Spec = *old.Spec.DeepCopy()
	next.Labels, next.Annotations, next.Finalizers = old.Labels, old.Annotations, old.Finalizers
	if len(containers) != len(old.Spec.Containers) {
		return invalid(old, "spec.containers", "", "containers may not be added or removed")
	}
	for i := range containers {
		have, want := old.Spec.Containers[i].Resources, containers[i].Resources
		if len(want.Requests) < len(have.Requests) || len(want.Limits) < len(have.Limits) {
			return invalid(old, "spec.containers", "", "resource requests and limits cannot be removed")
		}
		next.Spec.Containers[i].Resources = want
	}
	if !equality.Semantic.DeepEqual(old.Spec, next.Spec) {
		next.Generation = old.Generation + 1
	}
	return nil
}

// The capacity of the nodes: more than most is never available, more than spare not
// now. New Pods get all they request, because that is not a kubelet resize.
func most() resource.Quantity  { return resource.MustParse("900m") }
func spare() resource.Quantity { return resource.MustParse("600m") }

// cannot returns why the kubelet refuses a container its resources; "" if it does not.
func (n *nodes) cannot(want corev1.ResourceRequirements) string {
	cpu := want.Requests.Cpu()
	switch {
	case n.roomy:
		return ""
	case cpu.Cmp(most()) > 0:
		return corev1.PodReasonInfeasible
	case cpu.Cmp(spare()) > 0:
		return corev1.PodReasonDeferred
	}
	return ""
}

// resize starts to change the resources of a running container.
func (n *nodes) resize(pod *corev1.Pod, r *running, want *corev1.Container) {
	c := r.containers[want.Name]
	c.wanted = *want.Resources.DeepCopy()
	if !c.up || sameResources(c.resources, c.wanted) || n.cannot(c.wanted) != "" {
		return
	}
	c.allocated = c.wanted.Requests
	if c.resizing {
		return
	}
	c.resizing = true
	uid, at, name := pod.UID, client.ObjectKeyFromObject(pod), want.Name
	n.world.after(n.span(n.config.Resize), func() { n.resized(uid, at, name) })
}

// resized completes a resize, or stops the container for it.
func (n *nodes) resized(uid types.UID, at types.NamespacedName, name string) {
	pod, r := n.find(uid, at)
	if pod == nil {
		return
	}
	c := r.containers[name]
	c.resizing = false
	if n.down[pod.Spec.NodeName] || !c.up || n.cannot(c.wanted) != "" || pod.DeletionTimestamp != nil {
		return
	}
	for i := range pod.Spec.Containers {
		want := &pod.Spec.Containers[i]
		if want.Name == name && restartsFor(want, c) {
			c.up = false
			n.start(pod, r, want)
			n.report(pod, r)
			return
		}
	}
	c.resources = c.wanted
	n.report(pod, r)
}

// restartsFor reports whether the container has to restart to get its resources.
func restartsFor(want *corev1.Container, c *container) bool {
	return slices.ContainsFunc(want.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		has, wanted := c.resources.Requests[p.ResourceName], c.wanted.Requests[p.ResourceName]
		return p.RestartPolicy == corev1.RestartContainer && has.Cmp(wanted) != 0
	})
}

// has returns the resources that a container has, or will have once its image is
// available.
func (c *container) has() corev1.ResourceRequirements {
	if c.stuck {
		return c.wanted
	}
	return c.resources
}

// reported returns the resources that the kubelet reports for a container; for one that
// does not run, it reports those that it will have.
func (c *container) reported() (*corev1.ResourceRequirements, corev1.ResourceList) {
	if c.up {
		return c.resources.DeepCopy(), c.allocated.DeepCopy()
	}
	return c.wanted.DeepCopy(), c.wanted.Requests.DeepCopy()
}

// resizeConditions describe why a resize of the Pod waits, and whether one is under
// way.
func (n *nodes) resizeConditions(pod *corev1.Pod, r *running) (pending string, resizing bool) {
	for i := range pod.Spec.Containers {
		c := r.containers[pod.Spec.Containers[i].Name]
		if !c.up || sameResources(c.resources, c.wanted) {
			continue
		}
		if why := n.cannot(c.wanted); why != "" {
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
	at := metav1.NewTime(now.Truncate(time.Second))
	if pending != "" {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: pending, LastTransitionTime: at,
			Message: "Node didn't have enough capacity: cpu",
		})
	}
	if resizing {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, LastTransitionTime: at,
		})
	}
}

func sameResources(a, b corev1.ResourceRequirements) bool {
	return equality.Semantic.DeepEqual(a.Requests, b.Requests) && equality.Semantic.DeepEqual(a.Limits, b.Limits)
}

// wantedResources are the resources of a container in a raw template.
func wantedResources(container map[string]any) corev1.ResourceRequirements {
	var out corev1.ResourceRequirements
	data, err := json.Marshal(container["resources"])
	if err != nil || json.Unmarshal(data, &out) != nil {
		return corev1.ResourceRequirements{}
	}
	return out
}

func resourcesText(r corev1.ResourceRequirements) string {
	var parts []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := r.Requests[name]; ok {
			parts = append(parts, fmt.Sprintf("%s %s", name, q.String()))
		}
	}
	return strings.Join(parts, " and ")
}

// resourcesOf describes the resources of all containers.
func resourcesOf(pod *corev1.Pod) string {
	all := make([]string, 0, len(pod.Spec.Containers))
	for i := range pod.Spec.Containers {
		all = append(all, resourcesText(pod.Spec.Containers[i].Resources))
	}
	return strings.Trim(strings.Join(all, "+"), "+")
}
