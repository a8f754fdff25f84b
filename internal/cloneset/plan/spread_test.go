// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

const zoneKey = "topology.kubernetes.io/zone"

// zones has nodes a1, a2, b1 … in the zones a, b …; x1 is in none.
func zones(s *Snapshot) {
	s.Nodes = map[string]map[string]string{"x1": {}}
	for _, zone := range []string{"a", "b", "c"} {
		for i := 1; i <= 3; i++ {
			s.Nodes[fmt.Sprintf("%s%d", zone, i)] = map[string]string{zoneKey: zone, "rack": fmt.Sprintf("r%d", i)}
		}
	}
}

func spread(keys ...string) option {
	return func(s *Snapshot) {
		for _, key := range keys {
			s.Spec.Spread = append(s.Spec.Spread, SpreadTerm{TopologyKey: key, Selector: labels.Everything()})
		}
	}
}

// placed creates Pods on nodes: "a1 a1 b2" are p00 and p01 on a1 and p02 on b2.
func placed(nodes string, options ...podOption) []*corev1.Pod {
	var out []*corev1.Pod
	for i, node := range strings.Fields(nodes) {
		out = append(out, pod(fmt.Sprintf("p%02d", i), 1, append([]podOption{on(node)}, options...)...))
	}
	return out
}

// TestScaleInStaysEven: from 9 Pods in 3 zones to 3, over as many passes as the budget
// and the hook require, no zone ever has two Pods more than another.
func TestScaleInStaysEven(t *testing.T) {
	for name, options := range map[string][]option{
		"one at a time":  {starts(1)},
		"all at once":    {},
		"through a hook": {starts(2), hooks(preDelete())},
	} {
		t.Run(name, func(t *testing.T) {
			s := snap(3, append(options, spread(zoneKey), zones, with(placed("a1 a1 a1 b1 b2 b3 c1 c2 c2", finalizers(keyDelete))...))...)
			for range 20 {
				for _, a := range decide(t, s).Actions {
					if state(a.To)(a.Pod); a.Verb == Delete {
						s.Pods = slices.DeleteFunc(s.Pods, func(p *corev1.Pod) bool { return p == a.Pod })
					}
				}
				if counts := perZone(s); slices.Max(counts)-slices.Min(counts) > 1 {
					t.Fatalf("Pods in the zones: %v", counts)
				}
				for _, pod := range s.Pods {
					if apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) == apps.StatePreparingDelete {
						pod.Finalizers = nil // as its operator does
					}
				}
			}
			if counts := perZone(s); !slices.Equal(counts, []int{1, 1, 1}) {
				t.Errorf("Pods in the zones at the end: %v", counts)
			}
		})
	}
}

// perZone counts the Pods that stay.
func perZone(s *Snapshot) []int {
	counts := make([]int, 3)
	for _, pod := range s.Pods {
		if apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) != apps.StatePreparingDelete {
			counts[pod.Spec.NodeName[0]-'a']++
		}
	}
	return counts
}
