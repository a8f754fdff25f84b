// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Ready reports whether a Pod is ready.
func Ready(pod *corev1.Pod) bool { return IsTrue(pod, corev1.PodReady) }

// IsTrue reports whether a Pod has a condition with the status True.
func IsTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

// Version is the image tag that a Pod's container main runs, which differs from the spec
// during an in-place update; empty if it runs none.
func Version(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == "main" && c.State.Running != nil {
			_, tag, _ := strings.Cut(c.Image[strings.LastIndexByte(c.Image, '/')+1:], ":")
			return tag
		}
	}
	return ""
}

// Restarts counts the restarts of a Pod's containers.
func Restarts(pod *corev1.Pod) (n int) {
	for _, c := range pod.Status.ContainerStatuses {
		n += int(c.RestartCount)
	}
	return n
}
