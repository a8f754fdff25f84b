// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
)

// resizable returns the resources that can change in a running container.
func resizable() []corev1.ResourceName {
	return []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
}

// cpuMemory returns the cpu and memory of a container in a template. A limit without a request is the
// request too, as the API server defaults it.
func cpuMemory(c *corev1.Container) corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for _, name := range resizable() {
		if limit, ok := c.Resources.Limits[name]; ok {
			out.Limits[name], out.Requests[name] = limit, limit
		}
		if request, ok := c.Resources.Requests[name]; ok {
			out.Requests[name] = request
		}
	}
	return out
}

// resizes returns the resources of the containers whose cpu or memory differs between two
// otherwise equal templates, or why no Pod can be resized that way.
func resizes(from, to *corev1.PodSpec) (map[string]corev1.ResourceRequirements, *Refusal) {
	out, first := map[string]corev1.ResourceRequirements{}, ""
	before := lasting(from)
	for i, c := range lasting(to) {
		was, is := cpuMemory(before[i].Container), cpuMemory(c.Container)
		path := c.path + ".resources"
		if gone := removed(was, is); gone != "" {
			return nil, &Refusal{Field: path + gone, Why: "it cannot be removed from a running container"}
		}
		if differs(was, is) {
			out[c.Name], first = is, cmp.Or(first, path)
		}
	}
	if len(out) == 0 {
		return out, nil
	}
	if why := unresizable(from, to); why != "" {
		return nil, &Refusal{Field: first, Why: why}
	}
	return out, nil
}

// removed names the first request or limit that no longer exists.
func removed(was, is corev1.ResourceRequirements) string {
	for _, name := range resizable() {
		if missing(was.Limits, is.Limits, name) {
			return ".limits." + string(name)
		}
		if missing(was.Requests, is.Requests, name) {
			return ".requests." + string(name)
		}
	}
	return ""
}

func missing(was, is corev1.ResourceList, name corev1.ResourceName) bool {
	_, had := was[name]
	_, has := is[name]
	return had && !has
}

// unresizable returns why the API server would refuse a resize from one template to the other; "" if it
// accepts it.
func unresizable(from, to *corev1.PodSpec) string {
	if to.Resources != nil {
		return "Pods with resources of their own (spec.template.spec.resources) cannot be resized"
	}
	if was, is := qos(from), qos(to); was != is {
		return fmt.Sprintf("the QoS class would change from %s to %s", was, is)
	}
	return ""
}

// qos returns the QoS class of a template's Pods, by the rules of the API server.
func qos(spec *corev1.PodSpec) corev1.PodQOSClass {
	requests, limits, limited := corev1.ResourceList{}, corev1.ResourceList{}, true
	for _, c := range slices.Concat(spec.Containers, spec.InitContainers) {
		r := cpuMemory(&c)
		add(requests, r.Requests)
		limited = add(limits, r.Limits) == len(resizable()) && limited
	}
	switch {
	case len(requests)+len(limits) == 0:
		return corev1.PodQOSBestEffort
	case limited && !lacks(requests, limits):
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// add sums up the nonzero quantities, and returns how many resources that were.
func add(sum, list corev1.ResourceList) int {
	count := 0
	for name, q := range list {
		if q.Sign() > 0 {
			total := sum[name]
			total.Add(q)
			sum[name] = total
			count++
		}
	}
	return count
}

// differs reports whether resources lack something wanted, or have another amount of it.
// Unwanted resources do not count: a LimitRange or an autoscaler may have added them.
func differs(have, want corev1.ResourceRequirements) bool {
	return lacks(have.Requests, want.Requests) || lacks(have.Limits, want.Limits)
}

func lacks(have, want corev1.ResourceList) bool {
	for name, q := range want {
		if got, ok := have[name]; !ok || got.Cmp(q) != 0 {
			return true
		}
	}
	return false
}

// wantedResources returns the cpu and memory that a template gives to each container that
// runs as long as its Pod and has any.
func wantedResources(spec *corev1.PodSpec) map[string]corev1.ResourceRequirements {
	out := map[string]corev1.ResourceRequirements{}
	for _, c := range lasting(spec) {
		if r := cpuMemory(c.Container); len(r.Requests)+len(r.Limits) > 0 {
			out[c.Name] = r
		}
	}
	return out
}

// Resizes returns the resources that containers do not have yet, although the record of the Pod's
// update asks for them. They cannot be written together with the rest of the update, so the next pass
// that finds them missing writes them.
func Resizes(pod *corev1.Pod) map[string]corev1.ResourceRequirements {
	state, _ := ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState]) // an unreadable one asks for nothing
	return state.Resizes(pod)
}

// Resizes returns the resources of the record that the Pod's spec does not have.
func (s State) Resizes(pod *corev1.Pod) map[string]corev1.ResourceRequirements {
	return Change{Resources: s.Resources}.ResizesOf(pod)
}

// ResizesOf returns the complete resources of the containers that the change resizes of the Pod as it
// is.
func (c Change) ResizesOf(pod *corev1.Pod) map[string]corev1.ResourceRequirements {
	out := c.open(pod).Resources
	for name, want := range out {
		all := ContainerOf(pod, name).Resources.DeepCopy()
		all.Requests, all.Limits = merged(all.Requests, want.Requests), merged(all.Limits, want.Limits)
		out[name] = *all
	}
	return out
}

// resized reports whether a container has the resources that the record asks for.
//
// The kubelet reports the limits in force. It may report a request rounded to a cgroup's
// weight, or as it was when the container started; for requests, what the kubelet has
// allocated to the container counts too.
func (s State) resized(pod *corev1.Pod, name string, want corev1.ResourceRequirements) bool {
	status := StatusOf(pod, name)
	underWay := podread.IsTrue(pod, corev1.PodResizePending) || podread.IsTrue(pod, corev1.PodResizeInProgress)
	if status == nil || status.Resources == nil || !startedOrBlocked(status) || underWay {
		return false
	}
	return !lacks(status.Resources.Limits, want.Limits) &&
		(!lacks(status.Resources.Requests, want.Requests) || !lacks(status.AllocatedResources, want.Requests))
}

// startedOrBlocked reports whether the container runs, or waits for something other than its
// restart: a kubelet that has stopped a container for new resources shows them before it
// has started it again.
func startedOrBlocked(status *corev1.ContainerStatus) bool {
	waiting := status.State.Waiting
	return status.State.Running != nil ||
		(waiting != nil && waiting.Reason != "" && waiting.Reason != "ContainerCreating" && waiting.Reason != "PodInitializing")
}

// ResizeTrouble returns the kubelet's objection to the resize of a Pod, reason and message; "" if there
// is none.
func ResizeTrouble(pod *corev1.Pod) string {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		refused := c.Type == corev1.PodResizePending || (c.Type == corev1.PodResizeInProgress && c.Reason == corev1.PodReasonError)
		if refused && c.Status == corev1.ConditionTrue {
			return strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
		}
	}
	return ""
}
