// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"cmp"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// resizable are the resources that can change in a running container.
func resizable() []corev1.ResourceName {
	return []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
}

// cpuMemory reads the cpu and memory of a container in a raw template. A limit without a
// request is the request too, as the API server defaults it.
func cpuMemory(container map[string]any) corev1.ResourceRequirements {
	resources, _ := container["resources"].(map[string]any)
	out := corev1.ResourceRequirements{Requests: quantities(resources, "requests"), Limits: quantities(resources, "limits")}
	for name, limit := range out.Limits {
		if _, ok := out.Requests[name]; !ok {
			out.Requests[name] = limit
		}
	}
	return out
}

func quantities(resources map[string]any, field string) corev1.ResourceList {
	values, _ := resources[field].(map[string]any)
	out := corev1.ResourceList{}
	for _, name := range resizable() {
		if q, ok := revision.Quantity(values[string(name)]); ok {
			out[name] = q
		}
	}
	return out
}

// withoutResizable is a container's resources without what can change in place.
// Unreadable values stay, and are compared as they stand.
func withoutResizable(resources map[string]any) map[string]any {
	out := maps.Clone(resources)
	for _, field := range []string{"requests", "limits"} {
		values, ok := out[field].(map[string]any)
		if !ok {
			continue
		}
		values = maps.Clone(values)
		for _, name := range resizable() {
			if _, ok := revision.Quantity(values[string(name)]); ok {
				delete(values, string(name))
			}
		}
		out[field] = values
	}
	return out
}

// resizes returns the resources of the containers whose cpu or memory differs between two
// otherwise equal templates, or why no Pod can be resized that way.
func resizes(from, to map[string]any) (map[string]corev1.ResourceRequirements, *Refusal) {
	out, first := map[string]corev1.ResourceRequirements{}, ""
	for _, field := range containerFields() {
		old := members(from, field)
		for i, item := range members(to, field) {
			before, _ := old[i].(map[string]any) // the lists are equally long
			after, _ := item.(map[string]any)
			if !runsOn(field, after) || nameOf(after) == "" {
				continue
			}
			was, is := cpuMemory(before), cpuMemory(after)
			path := element("spec.template.spec."+field, i, item) + ".resources"
			if gone := removed(was, is); gone != "" {
				return nil, &Refusal{Field: path + gone, Why: "it cannot be removed from a running container"}
			}
			if differs(was, is) {
				out[nameOf(after)], first = is, cmp.Or(first, path)
			}
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

// unresizable returns why the API server accepts no resize from one template to the
// other; "" if it does.
func unresizable(from, to map[string]any) string {
	spec, _ := to["spec"].(map[string]any)
	if revision.Normalize(map[string]any{"spec": map[string]any{"resources": spec["resources"]}}) != nil {
		return "Pods with resources of their own (spec.template.spec.resources) cannot be resized"
	}
	if was, is := qos(from), qos(to); was != is {
		return fmt.Sprintf("the QoS class would change from %s to %s", was, is)
	}
	return ""
}

// qos is the QoS class of a template's Pods, by the rules of the API server.
func qos(template map[string]any) corev1.PodQOSClass {
	requests, limits, limited := corev1.ResourceList{}, corev1.ResourceList{}, true
	for _, c := range containers(template) {
		r := cpuMemory(c)
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

// withWanted is what a container's resources become.
func withWanted(have, want corev1.ResourceRequirements) corev1.ResourceRequirements {
	out := *have.DeepCopy()
	if out.Requests == nil && len(want.Requests) > 0 {
		out.Requests = corev1.ResourceList{}
	}
	if out.Limits == nil && len(want.Limits) > 0 {
		out.Limits = corev1.ResourceList{}
	}
	maps.Copy(out.Requests, want.Requests)
	maps.Copy(out.Limits, want.Limits)
	return out
}

// wantedResources returns the cpu and memory that a template gives to each container that
// runs as long as its Pod and has any.
func wantedResources(template map[string]any) map[string]corev1.ResourceRequirements {
	out := map[string]corev1.ResourceRequirements{}
	for field, c := range containers(template) {
		if r := cpuMemory(c); runsOn(field, c) && nameOf(c) != "" && len(r.Requests)+len(r.Limits) > 0 {
			out[nameOf(c)] = r
		}
	}
	return out
}

// Resizes returns the resources that containers do not have yet, although the record of
// the Pod's update asks for them. They cannot be written together with the rest of the
// update, so whoever finds them missing must write them.
func Resizes(pod *corev1.Pod) map[string]corev1.ResourceRequirements {
	state, err := ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil {
		return nil
	}
	return state.Resizes(pod)
}

// Resizes are the resources of the record that the Pod's spec does not have.
func (s State) Resizes(pod *corev1.Pod) map[string]corev1.ResourceRequirements {
	out := map[string]corev1.ResourceRequirements{}
	for name, want := range s.Resources {
		if c := ContainerOf(pod, name); c != nil && differs(c.Resources, want) {
			out[name] = withWanted(c.Resources, want)
		}
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
	underWay := IsTrue(pod, corev1.PodResizePending) || IsTrue(pod, corev1.PodResizeInProgress)
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

// ResizeTrouble is the kubelet's objection to the resize of a Pod, reason and message; ""
// if there is none.
func ResizeTrouble(pod *corev1.Pod) string {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		refused := c.Type == corev1.PodResizePending || (c.Type == corev1.PodResizeInProgress && c.Reason == corev1.PodReasonError)
		if !refused || c.Status != corev1.ConditionTrue {
			continue
		}
		if c.Message == "" {
			return c.Reason
		}
		return c.Reason + ": " + c.Message
	}
	return ""
}
