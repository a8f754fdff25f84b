// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// TestLaunch starts Pods to the end: each line of output is a step, with the containers that start. The
// first line of a scenario has the containers of the template, with their priorities; "injected" has one
// that a webhook adds to the Pod.
func TestLaunch(t *testing.T) {
	scenariotest.Run(t, "testdata/launch.txt", func(t *testing.T, lines []string) (out []string) {
		containers, annotations := []any{}, map[string]string{}
		pod := &corev1.Pod{}
		for _, line := range lines {
			word, rest, _ := strings.Cut(line, " ")
			switch word {
			case "containers":
				for one := range strings.FieldsSeq(rest) {
					containers = append(containers, container(one))
				}
			case "annotation":
				annotations[apps.AnnotationLaunchPriority] = rest
			case "injected":
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: rest})
			}
		}
		injected, spec := slices.Clone(pod.Spec.Containers), map[string]any{"containers": containers}
		Hold(spec, annotations)
		checktest.NoError(t, json.Unmarshal(encode.JSON(spec), &pod.Spec))
		pod.Spec.Containers, pod.Annotations = append(pod.Spec.Containers, injected...), annotations
		for range 9 {
			out = append(out, strings.Join(start(pod), " "))
			next := Of(pod)
			if next == nil {
				return append(out, fmt.Sprintf("%d volumes", len(pod.Spec.Volumes)))
			}
			out = append(out, next.String())
			makeReady(pod)
			if next = Of(pod); len(next.First) > 0 {
				return append(out, "stuck: "+next.String())
			}
			pod.Annotations[next.Key] = Open
		}
		return append(out, "no end")
	})
}

// container is "name" or "name=priority", raw.
func container(text string) any {
	name, priority, ranked := strings.Cut(text, "=")
	out := map[string]any{"name": name, "env": []any{map[string]any{"name": "OTHER", "value": "99"}}}
	if ranked {
		out["env"] = append(out["env"].([]any), map[string]any{"name": apps.EnvContainerPriority, "value": priority})
	}
	return out
}

// start starts the containers that may start and do not run, and returns them.
func start(pod *corev1.Pod) (names []string) {
	for _, c := range pod.Spec.Containers {
		runs := slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name })
		if !runs && !mayNot(pod, &c) {
			names = append(names, c.Name)
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name})
		}
	}
	return names
}

// mayNot reports what a kubelet finds: a path with a variable that has no value.
func mayNot(pod *corev1.Pod, c *corev1.Container) bool {
	for _, mount := range c.VolumeMounts {
		for _, v := range c.Env {
			if mount.SubPathExpr == "$("+v.Name+")" {
				key := strings.TrimSuffix(strings.TrimPrefix(v.ValueFrom.FieldRef.FieldPath, "metadata.annotations['"), "']")
				return pod.Annotations[key] == ""
			}
		}
	}
	return false
}

func makeReady(pod *corev1.Pod) {
	for i := range pod.Status.ContainerStatuses {
		pod.Status.ContainerStatuses[i].Ready = true
	}
}

// TestHolds: only the kubelet's error about the variable is a container that may not start yet.
func TestHolds(t *testing.T) {
	for _, test := range []struct {
		waiting corev1.ContainerStateWaiting
		want    bool
	}{
		{corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: "missing value for USHER_LAUNCH"}, true},
		{corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: `configmap "x" not found`}, false},
		{corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "USHER_LAUNCH"}, false},
	} {
		checktest.Same(t, test.waiting.Reason+" "+test.waiting.Message, test.want, Holds(&test.waiting))
	}
}
