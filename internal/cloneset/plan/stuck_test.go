// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// waits is a waiting container main, in a Pod that has not been ready for ten minutes.
func waits(reason string) podOption {
	return func(p *corev1.Pod) {
		conditionSince(corev1.PodReady, corev1.ConditionFalse, "", now.Add(-10*time.Minute))(p)
		c := &p.Status.ContainerStatuses[0]
		c.Ready, c.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
}

// runsAgain is a container main that runs again after it has exited, and is not ready
// yet.
func runsAgain(id string, code int32) podOption {
	return func(p *corev1.Pod) {
		waits("")(p)
		c := &p.Status.ContainerStatuses[0]
		c.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: code, ContainerID: id}
	}
}

// ended is a container main that has just exited.
func ended(id string, code int32) podOption {
	return func(p *corev1.Pod) {
		runsAgain(id, code)(p)
		c := &p.Status.ContainerStatuses[0]
		c.State = corev1.ContainerState{Terminated: c.LastTerminationState.Terminated}
	}
}

// also applies several options to a Pod, in this order.
func also(options ...podOption) podOption {
	return func(p *corev1.Pod) {
		for _, o := range options {
			o(p)
		}
	}
}

// seen is a Pod whose kubelet has observed its present spec.
func seen(p *corev1.Pod) { p.Status.ObservedGeneration = p.Generation }

// newContainer is the ID of main once the kubelet has recreated it.
func newContainer(p *corev1.Pod) {
	c := &p.Status.ContainerStatuses[0]
	c.ContainerID, c.Image = "c2", p.Spec.Containers[0].Image
}

// TestDigestOfAStuckContainer: a container that becomes stuck triggers a pass; the
// reasons that a kubelet alternates between do not.
func TestDigestOfAStuckContainer(t *testing.T) {
	for name, life := range map[string]podOption{"new": also(), "updating": also(updating(2), seen)} {
		digest := func(reason string) uint64 { return Digest(pod("a", 1, life, waits(reason))) }
		if digest("ErrImagePull") == digest("ContainerCreating") {
			t.Errorf("%s: the digest does not cover a stuck container", name)
		}
		for _, pair := range [][2]string{{"ErrImagePull", "ImagePullBackOff"}, {"RunContainerError", "CrashLoopBackOff"}} {
			if digest(pair[0]) != digest(pair[1]) {
				t.Errorf("%s: %s and %s differ", name, pair[0], pair[1])
			}
		}
	}
	crashed := Digest(pod("a", 1, waits("CrashLoopBackOff")))
	for name, edit := range map[string]podOption{"runs again": runsAgain("c0", 1), "has ended": ended("c0", 1)} {
		if Digest(pod("a", 1, edit)) != crashed {
			t.Errorf("a container that %s differs from one that waits to be started again", name)
		}
	}
}
