// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// affordable reports whether the node can give a container what it requests.
func (s *podState) affordable(spec *corev1.Container) bool {
	cpu := spec.Resources.Requests.Cpu()
	return s.mostCPU.IsZero() || cpu.Cmp(s.mostCPU) <= 0
}

// resized reports whether a container has the resources of its spec.
func resized(c *container, spec *corev1.Container) bool {
	return equality.Semantic.DeepEqual(c.resources, spec.Resources)
}

// resourcesAtStart are the resources a container starts with. A container that has run
// before keeps its old ones if the node cannot give it more.
func (p *pod) resourcesAtStart(c *container, spec *corev1.Container) corev1.ResourceRequirements {
	if c.id != "" && !p.affordable(spec) {
		return c.resources
	}
	return spec.Resources
}

// setResizeConditions reports containers that do not have the resources of their spec:
// they wait, or are being restarted for them. A kubelet has these conditions only while
// they apply.
func setResizeConditions(object *corev1.Pod, state *podState, status *corev1.PodStatus, now time.Time) {
	pending, progress := "", false
	for i, c := range state.containers {
		spec := containerSpec(object, i)
		switch {
		case c.instance == nil || resized(c, spec):
		case state.affordable(spec):
			progress = true
		default:
			pending = fmt.Sprintf("Node didn't have enough capacity: cpu, requested: %s, capacity: %s", spec.Resources.Requests.Cpu(), &state.mostCPU)
		}
	}
	for kind, wanted := range map[corev1.PodConditionType]bool{corev1.PodResizePending: pending != "", corev1.PodResizeInProgress: progress} {
		if !wanted {
			status.Conditions = slices.DeleteFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
		}
	}
	if pending != "" {
		setCondition(status, corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible, Message: pending,
			ObservedGeneration: object.Generation,
		}, now)
	}
	if progress {
		setCondition(status, corev1.PodCondition{
			Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, ObservedGeneration: object.Generation,
		}, now)
	}
}

// containerSpec is the spec of the container with that index, init containers
// first.
func containerSpec(object *corev1.Pod, i int) *corev1.Container {
	if inits := object.Spec.InitContainers; i < len(inits) {
		return &inits[i]
	}
	return &object.Spec.Containers[i-len(object.Spec.InitContainers)]
}

// mostCPU parses an option; "" is no limit.
func mostCPU(text string) (resource.Quantity, error) {
	if text == "" {
		return resource.Quantity{}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return q, fmt.Errorf("SimulatedOptions.MostCPU %q is no quantity such as \"500m\": %w", text, err)
	}
	return q, nil
}
