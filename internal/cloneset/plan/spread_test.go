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

// TestSpreadConstraints: the fullest domain loses a Pod first, as if the earlier
// victims were gone.
func TestSpreadConstraints(t *testing.T) {
	only := func(s *Snapshot) {
		s.Spec.Spread[0].Selector = labels.SelectorFromSet(labels.Set{"tier": "front"})
	}
	front := label("tier", "front")
	byTier := func(s *Snapshot) { s.Spec.Spread[0].MatchLabelKeys = []string{"tier"} }
	for _, test := range []struct {
		name    string
		goes    int
		pods    []*corev1.Pod
		options []option
		want    string
	}{
		{"zones, by the nodes' label", 1, placed("a1 b1 b2 c1"), []option{spread(zoneKey)}, "p01"},
		{"evened out", 3, placed("a1 a2 a3 b1 b2 c1"), []option{spread(zoneKey)}, "p00 p01 p03"},
		{"host names need no nodes", 1, placed("n1 n2 n2 n3"), []option{spread(corev1.LabelHostname)}, "p01"},
		{"the first constraint counts before the second", 1, placed("a1 a1 b1 b2 b3"), []option{spread(zoneKey, corev1.LabelHostname)}, "p02"},
		{"the second one among equals", 1, placed("a1 a2 b1 b1"), []option{spread(zoneKey, corev1.LabelHostname)}, "p02"},
		{"constraints that cross each other", 2, placed("a1 a2 b1 b3"), []option{spread(zoneKey, "rack")}, "p00 p02"},
		{"only what the selector counts", 1,
			append(placed("a1 a1 a1"), pod("q1", 1, front, on("b1")), pod("q2", 1, front, on("c1")), pod("q3", 1, front, on("c1"))),
			[]option{spread(zoneKey), only}, "q2"},
		{"matchLabelKeys count apart", 1,
			append(placed("a1 a1 b1"), pod("q1", 1, front, on("a1")), pod("q2", 1, front, on("b1")), pod("q3", 1, front, on("b1")), pod("q4", 1, front, on("b1"))),
			[]option{spread(zoneKey), byTier}, "q2"},
		{"a node without the label is in no domain", 1, placed("x1 x1 x1 a1"), []option{spread(zoneKey)}, "p03"},
		{"cost comes first", 1, append(placed("a1 a1"), pod("q", 1, on("b1"), annotation(corev1.PodDeletionCost, "-1"))), []option{spread(zoneKey)}, "q"},
		{"what goes first counts as gone", 2, append(placed("a1 a1 b1"), pod("q", 1, on("a1"), unready)), []option{spread(zoneKey)}, "q p00"},
		{"what leaves already does not count", 1, append(placed("a1 b1 b1"), pod("q1", 1, on("a1"), state(apps.StatePreparingDelete)),
			pod("q2", 1, on("a1"), state(apps.StatePreparingDelete))), []option{spread(zoneKey)}, "p01"},
		{"by node without constraints", 2, placed("n1 n2 n2 n2 n3"), nil, "p01 p02"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := snap(len(test.pods)-test.goes, append(test.options, zones, with(test.pods...))...)
			var got []string
			for _, v := range newPass(s).victims(test.goes) {
				got = append(got, v.pod.Name)
			}
			if want := strings.Fields(test.want); !slices.Equal(got, want) {
				t.Errorf("%v go, want %v", got, want)
			}
		})
	}
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
			w := &cluster{s: s}
			for range 20 {
				w.carryOut(decide(t, s))
				if counts := perZone(s); slices.Max(counts)-slices.Min(counts) > 1 {
					t.Fatalf("Pods in the zones: %v", counts)
				}
				for _, pod := range s.Pods {
					if apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) == apps.StatePreparingDelete {
						w.operator(pod)
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

// TestRestoreWhereItIsEmpty: of the Pods that are being removed, those return that leave
// the zones even.
func TestRestoreWhereItIsEmpty(t *testing.T) {
	leaving := []podOption{state(apps.StatePreparingDelete), finalizers(keyDelete)}
	s := snap(3, hooks(preDelete()), spread(zoneKey), zones, with(
		pod("p1", 1, on("b1")), pod("p2", 1, on("c1")),
		pod("q1", 1, append(leaving, on("a1"))...), pod("q2", 1, append(leaving, on("b1"))...), pod("q3", 1, append(leaving, on("c1"))...),
	))
	expect(t, s, "move q1 (ScaleInCancelled) to PreparingNormal")
}
