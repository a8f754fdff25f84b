// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/test/model"
)

// TestStatusOncePerStep: without faults, each status reports something that has
// happened since the previous one, and a rollout needs no more statuses than it has
// steps.
func TestStatusOncePerStep(t *testing.T) {
	for set, most := range map[string]int{ // of the statuses that a Pod may cost
		// Out of service; not ready; ready, with the next one out.
		"replicas 10; inPlace": 3,
		// Held; out of service; not ready; back and held; ready; released.
		"replicas 10; inPlace; hooks label": 6,
	} {
		t.Run(set, func(t *testing.T) {
			s, writes := rollOut(t, set)
			s.checkStatuses(t)
			if writes > 10*most {
				t.Errorf("%d writes of the status for 10 Pods, %d are enough\n%s", writes, 10*most, s.World.Story())
			}
			t.Logf("%d writes of the status for 10 Pods", writes)
		})
	}
}

// TestStatusOfALargeSet: during the rollout of a large set, the counters may lag behind
// by a few Pods, which saves writes; in the end they are right.
func TestStatusOfALargeSet(t *testing.T) {
	// A status after each pass that changed it would cost 146 writes.
	const pods, most = 150, 120
	s, writes := rollOut(t, fmt.Sprintf("replicas %d; inPlace; unavailable 20%%", pods))
	if writes > most {
		t.Errorf("%d writes of the status for %d Pods, %d are enough\n%s", writes, pods, most, s.World.Story())
	}
	status := s.Set().Status
	if status.UpdatedAvailableReplicas != pods || status.UpdatedReplicas != pods || status.ReadyReplicas != pods {
		t.Errorf("in the end the status is %+v", status)
	}
}

// rollOut rolls out another image, and counts the status writes.
func rollOut(t *testing.T, about string) (s *Simulation, writes int) {
	t.Helper()
	s = New(Calm(), NewSet(about))
	s.World.runUntil(epoch.Add(10 * time.Minute))
	before := len(s.statuses())
	s.change("image app:2")
	s.settles(t)
	return s, len(s.statuses()) - before
}

// statuses returns the status writes.
func (s *Simulation) statuses() []*model.Commit {
	return slices.DeleteFunc(slices.Clone(s.Server.Log[model.CloneSets]), func(c *model.Commit) bool { return !isProcess(c.Actor) })
}

// checkStatuses fails the test if nothing happened between two status writes.
func (s *Simulation) checkStatuses(t *testing.T) {
	t.Helper()
	all := s.statuses()
	for i, c := range all[1:] {
		if !s.happened(all[i].Version, c.Version) {
			t.Errorf("two statuses in a row, at %s and %s, and nothing happens in between\n%s",
				all[i].At.Sub(epoch), c.At.Sub(epoch), s.World.Story())
		}
	}
}

// happened reports whether a Pod or the spec changed between two versions.
func (s *Simulation) happened(from, to int64) bool {
	between := func(c *model.Commit) bool { return c.Version > from && c.Version < to }
	return slices.ContainsFunc(s.Server.Log[model.Pods], between) || slices.ContainsFunc(s.Server.Log[model.CloneSets], between)
}

// cordoned lets Pods of a set come into service and cordons one of the nodes. It returns when the last
// Pod left that node, and the least number of available Pods, within two minutes.
func cordoned(nodes int, about string) (s *Simulation, last time.Duration, fewest int) {
	config := Calm()
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
	return knowledge(s.Pods()).count(func(pod *corev1.Pod) bool { return available(pod, s.Set(), s.World.now()) })
}

// TestNodeDrains: a node with many Pods drains about as fast as one with a single Pod, and with a
// surge, as many Pods as before serve meanwhile.
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

// TestSingleNodeStays: if there is no other node, only as many Pods leave as the budget allows; when
// the node is uncordoned, the remaining Pods stay.
func TestSingleNodeStays(t *testing.T) {
	for name, surge := range map[string]string{"alone": "0", "with a surge": "2"} {
		s, _, fewest := cordoned(1, "replicas 10; unavailable 3; hooks preDelete; surge "+surge)
		stay := s.nodes.on(nodeName(0))
		if len(stay) != 7 || fewest != 7 {
			t.Errorf("%s: %d Pods are left on the node, at least %d served, want 7", name, len(stay), fewest)
		}
		s.nodes.cordon(0, false)
		s.settles(t)
		for _, pod := range stay {
			if _, err := s.Server.Get(model.Pods, key(pod.Namespace, pod.Name)); err != nil {
				t.Errorf("%s: Pod %s left after all", name, pod.Name)
			}
		}
	}
}
