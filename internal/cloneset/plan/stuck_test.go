// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
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

// TestStuck: a Pod of the update revision whose container cannot start, or exits again
// and again, is reported; one that is still starting is not.
func TestStuck(t *testing.T) {
	const image, crash = "ImagePullBackOff", "CrashLoopBackOff"
	for _, test := range []struct {
		name string
		pod  *corev1.Pod
		want string // the reason
	}{
		{"serves", pod("a", 1), ""},
		{"is being created", pod("a", 1, waits("ContainerCreating")), ""},
		{"waits for init containers", pod("a", 1, waits("PodInitializing")), ""},
		{"no image", pod("a", 1, waits("ErrImagePull")), image},
		{"no image, still", pod("a", 1, waits("ImagePullBackOff")), image},
		{"no image on the node", pod("a", 1, waits("ErrImageNeverPull")), "ErrImageNeverPull"},
		{"no name of an image", pod("a", 1, waits("InvalidImageName")), "InvalidImageName"},
		{"an image that cannot be read", pod("a", 1, waits("ImageInspectError")), "ImageInspectError"},
		{"no config map", pod("a", 1, waits("CreateContainerConfigError")), "CreateContainerConfigError"},
		{"cannot be made", pod("a", 1, waits("CreateContainerError")), "CreateContainerError"},
		{"no program", pod("a", 1, waits("RunContainerError")), crash},
		{"crashes", pod("a", 1, waits("CrashLoopBackOff")), crash},
		{"has just crashed", pod("a", 1, ended("c0", 1)), crash},
		{"runs again after a crash", pod("a", 1, runsAgain("c0", 1)), crash},
		{"runs again after an end", pod("a", 1, runsAgain("c0", 0)), ""},
		{"an old Pod", pod("a", 0, waits(crash)), ""},
		{"is deleted", pod("a", 1, waits(crash), terminating), ""},
		{"has failed", pod("a", 1, waits(crash), phase(corev1.PodFailed)), ""},
		{"is to be updated", pod("a", 1, waits(crash), state(apps.StatePreparingUpdate)), ""},
		{"is to be deleted", pod("a", 1, waits(crash), state(apps.StatePreparingDelete)), ""},
		{"updated, as it was before", pod("a", 0, updating(1), waits("ErrImagePull")), ""},
		{"updated, no image", pod("a", 0, updating(1), seen, waits("ErrImagePull")), image},
		{"updated, no image, and reported so", pod("a", 0, updating(1), seen, waits(crash)), image},
		{"updated, and ended for it", pod("a", 0, updating(1), seen, ended("c1", 137)), ""},
		{"updated, and starts", pod("a", 0, updating(1), seen, newContainer, runsAgain("c1", 137)), ""},
		{"updated, and crashes", pod("a", 0, updating(1), seen, newContainer, waits(crash)), crash},
		{"updated, and crashes again", pod("a", 0, updating(1), seen, newContainer, runsAgain("c2", 1)), crash},
		{"updated, nobody knows how", pod("a", 1, annotation(apps.AnnotationInPlaceUpdateState, "{"), runsAgain("c0", 1)), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := snap(1, with(test.pod))
			reason := ""
			for _, b := range waiting(s) {
				if b.Stuck != nil {
					reason = b.Stuck.Reason
				}
			}
			if reason != test.want {
				t.Errorf("stuck for %q, want %q", reason, test.want)
			}
		})
	}
}

// TestStuckIsReported: Pod, container, image, reason, since when and what to do.
func TestStuckIsReported(t *testing.T) {
	sidecar := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "side", Image: "side:1"}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "side", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}
	}
	s := snap(2, with(pod("b", 1, waits("CrashLoopBackOff")), pod("a", 1, waits("CrashLoopBackOff"), sidecar)))
	blocked := waiting(s)
	want := []string{
		"Pod a is not ready: its container side with image side:1 cannot be started (ImagePullBackOff) since 2026-01-02T02:54:05Z; fix the template or roll it back",
		"Pod b is not ready: its container main with image app:1 keeps exiting (CrashLoopBackOff) since 2026-01-02T02:54:05Z; fix the template or roll it back",
	}
	var got []string
	for _, b := range blocked {
		got = append(got, b.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestStuckOrHook: a Pod that waits for a hook that opens only to ready Pods is reported
// with its container; one that waits for a hook to leave, with the hook.
func TestStuckOrHook(t *testing.T) {
	for _, test := range []struct {
		state apps.LifecycleState
		want  string
	}{
		{apps.StatePreparingNormal, GateContainer}, {apps.StateUpdated, GateContainer},
		{apps.StatePreparingUpdate, "inPlaceUpdate"}, {apps.StatePreparingDelete, "preDelete"},
	} {
		h := gates(false)
		if test.state == apps.StateUpdated {
			h = lifecycle.Hooks{InPlaceUpdate: lifecycle.Hook{Finalizers: []string{keyUpdate}}}
		}
		p := pod("a", 1, state(test.state), waits("ErrImagePull"))
		if test.state == apps.StatePreparingUpdate || test.state == apps.StatePreparingDelete {
			registered(p)
		}
		if got := waiting(snap(1, hooks(h), with(p))); len(got) != 1 || got[0].Gate != test.want {
			t.Errorf("%s: %v, want the gate %s", test.state, got, test.want)
		}
	}
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
