// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/test/model"
)

// cordoned lets Pods of a set come into service and cordons one of the nodes. It returns when
// the last Pod left that node, and how few Pods were available since, within two minutes.
func cordoned(nodes int, about string) (s *Simulation, last time.Duration, fewest int) {
	config := steady()
	config.Nodes.Nodes = nodes
	s = New(config, NewSet(about))
	begin := epoch.Add(2 * time.Minute)
	s.World.runUntil(begin)
	fewest = replicas(s.Set())
	s.Server.Observers = append(s.Server.Observers, func(c *model.Commit) {
		old, pod := c.Pods()
		if old != nil && pod == nil && old.Spec.NodeName == nodeName(0) {
			last = s.World.now().Sub(begin)
		}
		fewest = min(fewest, s.available())
	})
	s.nodes.cordon(0, true)
	s.World.runUntil(begin.Add(2 * time.Minute))
	return s, last, fewest
}

func (s *Simulation) available() int {
	k := knowledge{s.Pods()}
	return k.count(func(pod *corev1.Pod) bool { return available(pod, s.Set(), s.World.now()) })
}

// TestNodeDrains: a node with many Pods drains about as fast as one with a single Pod, and
// with a surge no Pod less serves meanwhile.
func TestNodeDrains(t *testing.T) {
	const surging = "unavailable 0; surge 50; hooks preDelete; replicas "
	_, alone, _ := cordoned(2, surging+"2")
	s, last, fewest := cordoned(2, surging+"50")
	t.Logf("%s, and %s for one Pod", last, alone)
	if left := len(s.nodes.on(nodeName(0))); left > 0 || len(s.Pods()) != 50 || fewest < 50 || last > alone+time.Second {
		t.Errorf("%d of %d Pods are left on the node, at least %d served, and it took %s, want about as long as one Pod: %s", left, len(s.Pods()), fewest, last, alone)
	}
	s, _, fewest = cordoned(2, "replicas 10; unavailable 3; hooks preDelete")
	if left := len(s.nodes.on(nodeName(0))); left > 0 || fewest < 7 {
		t.Errorf("without a surge %d Pods are left on the node, at least %d served", left, fewest)
	}
}

// TestSingleNodeStays: without a place to go to, only as many Pods leave as the budget allows;
// when the node is uncordoned, those that are left stay.
func TestSingleNodeStays(t *testing.T) {
	for name, surge := range map[string]string{"alone": "0", "with a surge": "2"} {
		s, _, fewest := cordoned(1, "replicas 10; unavailable 3; hooks preDelete; surge "+surge)
		stay := s.nodes.on(nodeName(0))
		if len(stay) != 7 || fewest != 7 {
			t.Errorf("%s: %d Pods are left on the node, at least %d served, want 7", name, len(stay), fewest)
		}
		s.nodes.cordon(0, false)
		if v := s.Settle(); v != nil {
			t.Errorf("%s, uncordoned: %v\n%s", name, v, s.World.Story())
		}
		for _, pod := range stay {
			if _, err := s.Server.Get(model.Pods, key(pod.Namespace, pod.Name)); err != nil {
				t.Errorf("%s: Pod %s left after all", name, pod.Name)
			}
		}
	}
}
