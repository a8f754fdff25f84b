// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A node is done when it runs the new image; whether the Pod is in service is up to
// whoever drained it.
func TestHand(t *testing.T) {
	containers := func(status corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.ContainersReady, Status: status})
		}
	}
	for name, test := range map[string]struct {
		seen *corev1.Pod
		done bool
	}{
		"not asked yet":        {pod("a", containers(corev1.ConditionTrue)), false},
		"asked":                {pod("a", asked, containers(corev1.ConditionTrue)), false},
		"starts":               {pod("a", asked, ran, containers(corev1.ConditionFalse)), false},
		"another one is done":  {pod("b", asked, ran, containers(corev1.ConditionTrue)), false},
		"runs, out of service": {pod("a", asked, ran, unready, containers(corev1.ConditionTrue)), true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand("v2")
			done := h.expect("a")
			h.saw(test.seen)
			h.saw(test.seen)
			select {
			case <-done:
				if !test.done {
					t.Error("it counts as done")
				}
			default:
				if test.done {
					t.Error("it does not count as done")
				}
			}
		})
	}
}
