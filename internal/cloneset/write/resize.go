// SPDX-License-Identifier: Apache-2.0

package write

import (
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// continueUpdate adds the next step of an update to a patch, if it is due for the Pod as it is. The
// patch depends on the previous containers being ready.
func (p *Patch) continueUpdate(pod *corev1.Pod, a *plan.Action, now time.Time) {
	labels, annotations := state(a, now)
	step, ok := inplace.Next(pod, now)
	if !ok {
		p.metadata(pod, a, labels, annotations)
		return
	}
	maps.Copy(labels, inplace.Values(step.Labels))
	maps.Copy(annotations, inplace.Values(step.Annotations))
	p.testContainersReady("containerStatuses", pod.Status.ContainerStatuses)
	p.testContainersReady("initContainerStatuses", pod.Status.InitContainerStatuses)
	p.step(pod, a, step, annotations)
	p.metadata(pod, a, labels, annotations)
}

// testContainersReady tests that the containers that were observed ready still are.
func (p *Patch) testContainersReady(field string, statuses []corev1.ContainerStatus) {
	for i := range statuses {
		if statuses[i].Ready {
			p.test(fmt.Sprintf("/status/%s/%d/name", field, i), statuses[i].Name)
			p.test(fmt.Sprintf("/status/%s/%d/ready", field, i), true)
		}
	}
}

// Resize returns the patch of a Pod's subresource resize; nil if its containers have
// the cpu and memory that the update's record asks for. The patch depends on that record,
// and on the Pod being out of service.
func Resize(pod *corev1.Pod, a *plan.Action) ([]byte, error) {
	wanted := inplace.Resizes(pod)
	if len(wanted) == 0 || apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) != apps.StateUpdating {
		return nil, nil
	}
	p := Basis(pod)
	p.testDrained(pod, a)
	p.testSpec(pod)
	p.resources("containers", pod.Spec.Containers, wanted)
	p.resources("initContainers", pod.Spec.InitContainers, wanted)
	return p.Encode()
}

func (p *Patch) resources(field string, containers []corev1.Container, wanted map[string]corev1.ResourceRequirements) {
	for i := range containers {
		if resources, ok := wanted[containers[i].Name]; ok {
			p.test(fmt.Sprintf("/spec/%s/%d/name", field, i), containers[i].Name)
			p.add(fmt.Sprintf("/spec/%s/%d/resources", field, i), resources)
		}
	}
}
