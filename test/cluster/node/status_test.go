// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// buildRecord builds the record of a container in the given state: "new", "running",
// "waiting" (in a crash loop), or "ended" with an exit code.
func buildRecord(role role, state string, code int32) *container {
	c := &container{name: "c", role: role}
	switch state {
	case "running":
		c.id, c.instance = "simulated://1", &simulatedInstance{}
		c.hooked, c.startup, c.readiness = true, probeSuccess, probeSuccess
	case "waiting", "ended":
		c.id, c.exit = "simulated://1", &corev1.ContainerStateTerminated{ExitCode: code}
	}
	if state == "waiting" {
		c.waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
	}
	return c
}

func TestComputePhase(t *testing.T) {
	always, onFailure, never := corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	running, unborn := buildRecord(roleMain, "running", 0), buildRecord(roleMain, "new", 0)
	done, failed := buildRecord(roleMain, "ended", 0), buildRecord(roleMain, "ended", 1)
	for _, test := range []struct {
		name        string
		policy      corev1.RestartPolicy
		containers  []*container
		initialized bool
		down        bool
		want        corev1.PodPhase
	}{
		{"nothing runs yet", always, []*container{unborn}, true, false, corev1.PodPending},
		{"one of two runs", always, []*container{running, unborn}, true, false, corev1.PodPending},
		{"all run", always, []*container{running, running}, true, false, corev1.PodRunning},
		{"one runs, one is through", never, []*container{running, failed}, true, false, corev1.PodRunning},
		{"crash loop", always, []*container{buildRecord(roleMain, "waiting", 1)}, true, false, corev1.PodRunning},
		{"crash loop, then terminated", always, []*container{failed}, true, true, corev1.PodFailed},
		{"terminated well", always, []*container{done}, true, true, corev1.PodSucceeded},
		{"success that is repeated", always, []*container{done}, true, false, corev1.PodRunning},
		{"failure that is repeated", onFailure, []*container{done, failed}, true, false, corev1.PodRunning},
		{"success", onFailure, []*container{done, done}, true, false, corev1.PodSucceeded},
		{"failure", never, []*container{done, failed}, true, false, corev1.PodFailed},
		{"init container runs", always, []*container{buildRecord(roleInit, "running", 0), unborn}, false, false, corev1.PodPending},
		{"init container failed", never, []*container{buildRecord(roleInit, "ended", 1), unborn}, false, false, corev1.PodFailed},
		{"init container fails", always, []*container{buildRecord(roleInit, "waiting", 1), unborn}, false, false, corev1.PodPending},
		{"sidecar runs", always, []*container{buildRecord(roleSidecar, "running", 0), unborn}, false, false, corev1.PodPending},
		{"sidecar restarts", always, []*container{buildRecord(roleSidecar, "waiting", 1), running}, true, false, corev1.PodRunning},
		{"sidecar outlives", never, []*container{buildRecord(roleSidecar, "running", 0), done}, true, false, corev1.PodRunning},
	} {
		t.Run(test.name, func(t *testing.T) {
			state := &podState{containers: test.containers, initialized: test.initialized, down: test.down}
			if got := computePhase(buildPod(withPolicy(test.policy)), state); got != test.want {
				t.Errorf("phase %s, want %s", got, test.want)
			}
		})
	}
}

func TestTerminalPhaseStays(t *testing.T) {
	object := buildPod()
	object.Status.Phase = corev1.PodFailed
	state := &podState{containers: []*container{buildRecord(roleMain, "running", 0)}, initialized: true}
	if got := computeStatus(object, state, time.Unix(0, 0)).Phase; got != corev1.PodFailed {
		t.Errorf("phase %s, want %s", got, corev1.PodFailed)
	}
}

func TestStatusPatchTouchesOnlyWhatChanged(t *testing.T) {
	at := metav1.NewTime(time.Unix(1_800_000_000, 0))
	object := buildPod(func(object *corev1.Pod) {
		object.Status.Conditions = []corev1.PodCondition{
			{Type: "KruisePodReady", Status: corev1.ConditionTrue, LastTransitionTime: at},
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at, ObservedGeneration: 1},
		}
		object.Status.QOSClass = corev1.PodQOSBestEffort
	})
	state := &podState{
		ip: "127.77.0.1", hostIP: "127.0.0.1", startedAt: at.Time, initialized: true,
		containers: []*container{buildRecord(roleMain, "running", 0)},
	}
	status := computeStatus(object, state, at.Time)
	data, err := statusPatch(object, status)
	if err != nil {
		t.Fatal(err)
	}
	var patch struct {
		Metadata map[string]string `json:"metadata"`
		Status   struct {
			Conditions []corev1.PodCondition `json:"conditions"`
			QOSClass   *string               `json:"qosClass"`
			PodIP      string                `json:"podIP"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		t.Fatal(err)
	}
	if len(patch.Metadata) != 1 || patch.Metadata["uid"] != "uid-1" {
		t.Errorf("metadata %v, want the UID alone", patch.Metadata)
	}
	var kinds []corev1.PodConditionType
	for _, condition := range patch.Status.Conditions {
		kinds = append(kinds, condition.Type)
	}
	if len(kinds) != 4 {
		t.Errorf("conditions %v, want the four that are new", kinds)
	}
	if patch.Status.QOSClass != nil || patch.Status.PodIP != state.ip {
		t.Errorf("patch %s: want the address in it, and not the QoS class", data)
	}

	object.Status = *status
	if again, err := statusPatch(object, computeStatus(object, state, at.Add(time.Hour))); err != nil || again != nil {
		t.Errorf("patch %s, %v for a status that is as it should be", again, err)
	}
}
