// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
)

// withCPU edits a revision: its container asks for cpu.
func withCPU(cpu string) func(map[string]any) {
	return func(template map[string]any) {
		mainOf(template)["resources"] = map[string]any{"requests": map[string]any{"cpu": cpu}}
	}
}

// withBase edits a revision: it adds a second container, which goes first.
func withBase(n int) func(map[string]any) {
	return func(template map[string]any) {
		spec := template["spec"].(map[string]any)
		spec["containers"] = append(spec["containers"].([]any), map[string]any{
			"name": "base", "image": fmt.Sprintf("base:%d", n),
			"env": []any{map[string]any{"name": apps.EnvContainerPriority, "value": "10"}},
		})
	}
}

func cpuOf(amount string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}}
}

// hasCPU makes the container ask for cpu, and the kubelet report it.
func hasCPU(amount string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = cpuOf(amount)
		if len(p.Status.ContainerStatuses) > 0 {
			p.Status.ContainerStatuses[0].Resources = new(cpuOf(amount))
		}
	}
}

// hasBase is the second container of withBase(1).
func hasBase(p *corev1.Pod) {
	const image = "base:1"
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
		Name: "base", Image: image, Env: []corev1.EnvVar{{Name: apps.EnvContainerPriority, Value: "10"}},
	})
	p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
		Name: "base", Image: image, ImageID: "id-" + image, ContainerID: "b1", Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	})
}

// resizing is on its way to cpu 200m: its record is written, and its spec if asked.
func resizing(written bool) podOption {
	return func(p *corev1.Pod) {
		begun(2, &inplace.Change{Resources: map[string]corev1.ResourceRequirements{"main": cpuOf("200m")}})(p)
		if written {
			p.Spec.Containers[0].Resources = cpuOf("200m")
			p.Generation++
		}
	}
}

func resized(p *corev1.Pod) {
	p.Status.ObservedGeneration = p.Generation
	hasCPU("200m")(p)
}

func kubeletSays(kind corev1.PodConditionType, reason string) podOption {
	return func(p *corev1.Pod) {
		p.Status.ObservedGeneration = p.Generation
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: "not enough cpu"})
	}
}

// inBatch is on its way to r2: base is updated, main waits.
func inBatch(p *corev1.Pod) {
	begun(2, &inplace.Change{Images: map[string]string{"main": "app:2", "base": "base:2"}})(p)
	p.Spec.Containers[1].Image = "base:2"
	p.Generation++
}

func baseRuns(ready bool) podOption {
	return func(p *corev1.Pod) {
		restarted(p)
		p.Status.ContainerStatuses[1].Ready = ready
	}
}

// TestDigestOfAResize: what a resize waits for changes the digest.
func TestDigestOfAResize(t *testing.T) {
	start := func(edits ...podOption) uint64 {
		return Digest(pod("a", 1, append([]podOption{hasCPU("100m"), resizing(true)}, edits...)...))
	}
	before := start()
	for name, edit := range map[string]podOption{
		"resources":    func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Resources = new(cpuOf("200m")) },
		"no resources": func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Resources = nil },
		"allocated":    func(p *corev1.Pod) { p.Status.ContainerStatuses[0].AllocatedResources = cpuOf("200m").Requests },
		"pending": func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending})
		},
		"why a container waits": func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		},
	} {
		if start(edit) == before {
			t.Errorf("%s: the digest stays", name)
		}
	}
}
