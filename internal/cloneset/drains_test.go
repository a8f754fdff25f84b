// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// TestDrains: a drain counts from when it was known to be in effect, whatever time the
// write gives.
func TestDrains(t *testing.T) {
	pod := func(status corev1.ConditionStatus, at time.Time) *corev1.Pod {
		return podOf(nil, "a", inUpdate(status, at))
	}
	out, in := corev1.ConditionFalse, corev1.ConditionTrue
	type look struct {
		pod  *corev1.Pod
		at   time.Duration
		want time.Duration // -1: not drained
	}
	tests := map[string][]look{
		"in service":                                  {{pod(in, now), 0, -1}},
		"the answer came late":                        {{pod(out, now), 20 * time.Second, 20 * time.Second}, {pod(out, now), 30 * time.Second, 20 * time.Second}},
		"begun by another process":                    {{pod(out, now), 10 * time.Minute, maxFlight}},
		"back in service, and out again":              {{pod(out, now), time.Second, time.Second}, {pod(in, now), 2 * time.Second, -1}, {pod(out, now), 9 * time.Second, 9 * time.Second}},
		"a later drain, the one between was not seen": {{pod(out, now), time.Second, time.Second}, {pod(out, now.Add(40*time.Second)), 42 * time.Second, 42 * time.Second}},
	}
	for name, looks := range tests {
		t.Run(name, func(t *testing.T) {
			d := newDrains()
			for _, look := range looks {
				since, drained := d.of(plan.ReadPods([]*corev1.Pod{look.pod}, nil), now.Add(look.at))["uid-a"]
				if drained != (look.want >= 0) || drained && !since.Equal(now.Add(look.want)) {
					t.Errorf("after %s: drained %t since %s, want %s", look.at, drained, since.Sub(now), look.want)
				}
			}
			d.forget("uid-a")
			if len(d.known) > 0 {
				t.Errorf("a Pod that is gone is remembered: %v", d.known)
			}
		})
	}
}
