// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// TestAvailable: a Pod is available if it is Normal, has been ready for minReadySeconds,
// and is not out of its endpoints for an update.
func TestAvailable(t *testing.T) {
	noGate := func(p *corev1.Pod) { p.Spec.ReadinessGates, p.Status.Conditions = nil, p.Status.Conditions[:1] }
	for _, test := range []struct {
		name      string
		pod       *corev1.Pod
		available bool
		due       time.Duration // 0 if time alone changes nothing
	}{
		{"ready and Normal", pod("a", 1), true, 0},
		{"no state label", pod("a", 1, state("")), true, 0},
		{"no condition of ours", pod("a", 1, noGate), true, 0},
		{"not ready", pod("a", 1, unready), false, 0},
		{"out of its endpoints", pod("a", 1, out(1, time.Hour)), false, 0},
		{"ready for too short a time", pod("a", 1, readyFor(59*time.Second)), false, time.Second},
		{"ready for long enough", pod("a", 1, readyFor(time.Minute)), true, 0},
		{"PreparingNormal", pod("a", 1, state(apps.StatePreparingNormal)), false, 0},
		{"PreparingUpdate", pod("a", 1, state(apps.StatePreparingUpdate)), false, 0},
		{"Updating", pod("a", 1, state(apps.StateUpdating)), false, 0},
		{"Updated", pod("a", 1, state(apps.StateUpdated)), false, 0},
		{"PreparingDelete", pod("a", 1, state(apps.StatePreparingDelete)), false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := snap(1, with(test.pod))
			s.Spec.MinReady = time.Minute
			var v podState
			s.read(&v, newPodInfo(test.pod))
			if v.available != test.available || (test.due == 0) != v.wakeAt.IsZero() || (test.due != 0 && !v.wakeAt.Equal(now.Add(test.due))) {
				t.Errorf("available %v, to be looked at again at %v", v.available, v.wakeAt)
			}
			if got := tally(s).Available == 1; got != test.available {
				t.Errorf("counted as available: %v", got)
			}
		})
	}
}
