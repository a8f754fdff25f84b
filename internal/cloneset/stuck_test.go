// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// stuckPod is a Pod with a container that cannot start.
func stuckPod(reason string, since time.Duration) plan.Blocked {
	return plan.Blocked{
		Pod: "web-a", Gate: plan.GateContainer, State: apps.StateUpdating, Keys: []string{reason}, Since: now.Add(-since),
		Stuck: &plan.Stuck{Container: "main", Image: "web:v2", Reason: reason},
	}
}

// TestStuckContainerIsReportedOnce: one event, whatever reason the kubelet gives, and
// another one when there is another image.
func TestStuckContainerIsReportedOnce(t *testing.T) {
	recorder := &countingRecorder{}
	r := &Reconciler{Events: recorder, reported: newReportedWaits()}
	set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	other := stuckPod("ImagePullBackOff", longWait)
	other.Stuck.Image = "web:v3"
	for i, step := range []struct {
		stuck plan.Blocked
		want  int
	}{
		{stuckPod("ImagePullBackOff", longWait-time.Second), 0}, {stuckPod("ImagePullBackOff", longWait), 1},
		{stuckPod("CrashLoopBackOff", longWait), 1}, {other, 2},
	} {
		r.recordBlocked(set, []plan.Blocked{step.stuck}, now)
		if recorder.events != step.want {
			t.Errorf("after pass %d: %d events, want %d", i+1, recorder.events, step.want)
		}
	}
	if reasons, _ := recordedEvents(&plan.Plan{}, []plan.Blocked{stuckPod("ImagePullBackOff", longWait)}); !slices.Equal(reasons, []string{"Warning Blocked"}) {
		t.Errorf("events %q", reasons)
	}
}

// TestStuckFinding: the condition has its own reason, and counts the others.
func TestStuckFinding(t *testing.T) {
	hook := plan.Blocked{Pod: "web-b", Gate: "preDelete", Keys: []string{"k"}, Since: now}
	got := findBlocked([]plan.Blocked{stuckPod("CrashLoopBackOff", time.Minute), hook})
	if got.reason != ReasonContainerStuck || !strings.Contains(got.message, "Pod web-a") || !strings.HasSuffix(got.message, "; 1 other Pod waits too") {
		t.Errorf("found %+v", got)
	}
	for message, blocked := range map[string][]plan.Blocked{"; 1 other Pod waits at a gate": {hook, hook}, "; 2 other Pods wait at a gate": {hook, hook, hook}} {
		if got := findBlocked(blocked); got.reason != ReasonWaitingForHook || !strings.HasSuffix(got.message, message) {
			t.Errorf("found %+v", got)
		}
	}
}

// TestStuckMetrics: a stuck container stands for a gate.
func TestStuckMetrics(t *testing.T) {
	c := newSetCollector(func() time.Time { return now })
	c.put(keyOf(&apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}),
		[]plan.Blocked{stuckPod("ImagePullBackOff", time.Minute)}, plan.ReadPods([]*corev1.Pod{inState("")}, nil))
	compare(t, c, `# HELP usher_cloneset_blocked_pods Pods that wait at a gate, by the label or finalizer that they wait for; or for a container, by the kubelet's reason.
# TYPE usher_cloneset_blocked_pods gauge
usher_cloneset_blocked_pods{cloneset="web",gate="container",key="ImagePullBackOff",namespace="shop"} 1
# HELP usher_cloneset_blocked_seconds How long the longest-waiting Pod has been at a gate.
# TYPE usher_cloneset_blocked_seconds gauge
usher_cloneset_blocked_seconds{cloneset="web",gate="container",namespace="shop"} 60
# HELP usher_cloneset_pods Pods of a CloneSet by lifecycle state, without terminating Pods.
# TYPE usher_cloneset_pods gauge
usher_cloneset_pods{cloneset="web",namespace="shop",state="Normal"} 1
`)
}
