// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

// respec changes the spec of a Registration.
func (s *simulation) respec(name string, change func(*usher.RegistrationSpec)) {
	edit(s, namespace, name, func(r *usher.Registration) { change(&r.Spec) })
}

// overlapping has one Pod that both Registrations select: nginx in Registry backup,
// edge in discovery.
func overlapping(t *testing.T) *simulation {
	t.Helper()
	s := simulate(t, 1, features{second: true}, defects{})
	for name, registry := range map[string]string{"nginx": "backup", edge: "discovery"} {
		s.respec(name, func(spec *usher.RegistrationSpec) { spec.Registries = []string{registry} })
	}
	s.populate(1)
	pod := s.pods()[0]
	s.label(pod, "nginx", edge)
	s.passes(3)
	s.listsBoth(1, 1)
	return s
}

// listsBoth counts what nginx has in backup, and edge in discovery.
func (s *simulation) listsBoth(nginx, edges int) {
	s.Helper()
	if have := s.listedIn("backup"); have != nginx {
		s.Errorf("backup lists %d Pods of nginx, want %d", have, nginx)
	}
	if have := len(s.stores["discovery"].Entries(edge)); have != edges {
		s.Errorf("discovery lists %d Pods of edge, want %d", have, edges)
	}
}

func TestAPodThatLeavesOneOfTwoSelectorsLeavesItsRegistryAtOnce(t *testing.T) {
	s := overlapping(t)
	pod := s.pods()[0]
	s.label(pod, "nginx", "stable")
	s.passes(1)
	s.listsBoth(1, 0)
}

func TestAPodThatJoinsASecondSelectorJoinsItsRegistryAtOnce(t *testing.T) {
	s := overlapping(t)
	pod := s.pods()[0]
	s.label(pod, "nginx", "stable")
	s.wait(repairInterval)
	s.passes(2)
	s.listsBoth(1, 0)
	s.label(pod, "nginx", edge)
	s.passes(1)
	s.listsBoth(1, 1)
}

// TestAPodJoinsASecondSelectorWhenItsRegistryIsBack does not wait for the next sweep.
func TestAPodJoinsASecondSelectorWhenItsRegistryIsBack(t *testing.T) {
	s := overlapping(t)
	pod := s.pods()[0]
	s.label(pod, "nginx", "stable")
	s.wait(repairInterval)
	s.passes(2)
	s.breaks("discovery", memory.Down)
	s.label(pod, "nginx", edge)
	s.passes(2)
	s.breaks("discovery", memory.None)
	s.refresh()
	s.probe()
	s.passes(1)
	s.listsBoth(1, 1)
}

// TestADeletedPodWaitsForARegistryThatItHasLeft takes a Pod out of a selector while
// that one's registry is down, and deletes it. Every write checks that no registry
// lists a Pod that could vanish.
func TestADeletedPodWaitsForARegistryThatItHasLeft(t *testing.T) {
	for name, leave := range map[string]func(*simulation){
		"the Pod is relabelled": func(s *simulation) {
			pod := s.pods()[0]
			s.label(pod, "nginx", "stable")
		},
		"the selector is changed": func(s *simulation) {
			s.respec(edge, func(spec *usher.RegistrationSpec) { spec.Selector.MatchLabels["more"] = "wanted" })
		},
		"the Registration vanishes": func(s *simulation) { s.vanish(edge) },
	} {
		t.Run(name, func(t *testing.T) {
			s := overlapping(t)
			s.breaks("discovery", memory.Down)
			leave(s)
			s.passes(2)
			s.restart()
			s.passes(1)
			pod := s.pods()[0]
			s.delete(pod)
			s.kubelets()
			s.passes(2)
			s.listsBoth(0, 1)
			s.breaks("discovery", memory.None)
			s.refresh()
			s.probe()
			s.passes(2)
			s.listsBoth(0, 0)
			if left := s.pods(); len(left) != 0 {
				t.Errorf("%s is never let go: %v", left[0].Name, left[0].ObjectMeta)
			}
		})
	}
}

// TestADrainWaitsForARegistryThatThePodHasLeft is the same for a hook.
func TestADrainWaitsForARegistryThatThePodHasLeft(t *testing.T) {
	s := overlapping(t)
	s.breaks("discovery", memory.Down)
	pod := s.pods()[0]
	s.label(pod, "nginx", "stable")
	s.enter(pod, apps.StatePreparingDelete, "")
	for range 3 {
		s.passes(1)
		s.wait(propagation)
	}
	if pod = s.pods()[0]; pod.Labels[keyDelete] != "true" {
		t.Fatal("the hook was released while discovery is down")
	}
	s.breaks("discovery", memory.None)
	s.refresh()
	s.probe()
	for range 6 {
		s.passes(1)
		s.wait(propagation)
	}
	if pod = s.pods()[0]; pod.Labels[keyDelete] != "false" {
		t.Error("the hook is never released")
	}
}

// TestAnOldDrainSetsNoDeadline takes an update back while the Pod is not ready, and
// begins it again when the first one's deadline is over. An operator that takes both
// for one drain is caught.
func TestAnOldDrainSetsNoDeadline(t *testing.T) {
	secondUpdate(t, defects{})
	have := secondUpdate(t, misreading(takesDrainsForOne))
	if !strings.Contains(have, "while a registry lists it") {
		t.Errorf("an operator that takes both drains for one is not caught: %q", have)
	}
}

// secondUpdate returns the rule that was broken.
func secondUpdate(t *testing.T, wrong defects) string {
	t.Helper()
	s := simulate(t, 1, features{proceed: true}, wrong)
	s.populate(1)
	s.passes(2)
	s.breaks("discovery", memory.Down)
	pod := s.pods()[0]
	s.crash(pod)
	for _, state := range []apps.LifecycleState{apps.StatePreparingUpdate,
		apps.StateNormal, apps.StatePreparingUpdate} {
		s.enter(pod, state, "")
		s.passes(2)
		pod = s.pods()[0]
		s.wait(deadline)
	}
	s.passes(1)
	if pod = s.pods()[0]; pod.Labels[keyInPlace] != "false" {
		t.Error("the hook is not released at its own deadline")
	}
	return s.broken
}

// TestVanishedRegistrationWithAnotherSelector changes a selector before the
// Registration vanishes.
func TestVanishedRegistrationWithAnotherSelector(t *testing.T) {
	s := overlapping(t)
	later := metav1.LabelSelector{MatchLabels: map[string]string{"app": "nginx"}}
	s.respec(edge, func(spec *usher.RegistrationSpec) { spec.Selector = later })
	s.passes(2)
	if users := s.registry("discovery").Status.Users; len(users) != 1 || users[0].Selector.MatchLabels["app"] != "nginx" {
		t.Errorf("discovery knows of %+v, want one with the later selector", users)
	}
	pod := s.pods()[0]
	s.label(pod, "nginx", "stable")
	s.passes(1)
	s.breaks("discovery", memory.Down)
	s.vanish(edge)
	s.passes(1)
	s.delete(pod)
	s.kubelets()
	s.passes(2)
	s.listsBoth(0, 1)
}
