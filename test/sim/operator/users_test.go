// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
	"github.com/usher-dev/usher/test/model"
)

// recordsIn is how many records there are of it.
func (s *simulation) recordsIn(name string) int {
	return len(s.registry(name).Status.Users)
}

// registry reads a Registry from the API server; nil if there is none.
func (s *simulation) registry(name string) *usher.Registry {
	return model.Get[*usher.Registry](s.server.Objects, types.NamespacedName{Name: name})
}

// registeredWorld has three Pods in both registries, of which discovery goes down
// before the Registration vanishes.
func registeredWorld(t *testing.T, wrong defects) *simulation {
	t.Helper()
	s := simulate(t, 1, features{}, wrong)
	s.populate(3)
	s.passes(2)
	s.probe()
	s.lists(3, 3)
	s.breaks("discovery", memory.Down)
	return s
}

// TestVanishedRegistration takes the finalizer off a Registration while a registry
// is down: no Pod goes before its entries, whatever happens to Usher.
func TestVanishedRegistration(t *testing.T) {
	s := registeredWorld(t, defects{})
	s.passes(1)
	s.vanish("nginx")
	s.passes(1)
	if s.recordsIn("discovery") != 1 {
		t.Fatal("discovery has no record of what is left there")
	}
	pods := s.pods()
	s.delete(pods[0])
	s.kubelets()
	s.restart()
	s.passes(2)
	s.wait(time.Minute)
	s.passes(2)
	s.lists(3, 0)
	if len(s.pods()) != 3 {
		t.Fatalf("%d Pods are left while discovery lists three", len(s.pods()))
	}
	s.breaks("discovery", memory.None)
	s.passes(1)
	s.probe()
	s.passes(3)
	s.lists(0, 0)
	s.wait(plan.DefaultAfterOutage + propagation)
	s.passes(1)
	for _, pod := range s.pods() {
		if controllerutil.ContainsFinalizer(pod, usher.Finalizer) {
			t.Errorf("%s is never let go", pod.Name)
		}
	}
	if have := len(s.pods()); have != 2 || s.recordsIn("discovery")+s.recordsIn("backup") != 0 {
		t.Errorf("%d Pods are left, want 2, and records %d, %d", have, s.recordsIn("discovery"), s.recordsIn("backup"))
	}
}

// TestLosingRecordsIsCaught breaks the operator so that it finds no records.
func TestLosingRecordsIsCaught(t *testing.T) {
	s := registeredWorld(t, misreading(func(r *usher.Registry) { r.Status.Users = nil }))
	s.passes(1)
	s.vanish("nginx")
	s.passes(1)
	s.restart()
	s.passes(2)
	if !strings.Contains(s.broken, "while a registry lists it") && !strings.Contains(s.broken, "could vanish") {
		t.Errorf("it is not caught: %q", s.broken)
	}
}

// TestRegistrationIsMadeAnew has another one of the name, with another service,
// before Usher hears that the first is gone.
func TestRegistrationIsMadeAnew(t *testing.T) {
	s := registeredWorld(t, defects{})
	s.passes(1)
	next := s.vanish("nginx")
	next.Spec.Instance.Service = "other"
	s.make(next)
	s.wait(time.Minute)
	s.breaks("discovery", memory.None)
	for range 4 {
		s.refresh()
		s.probe()
		s.passes(1)
	}
	s.lists(0, 0)
	for _, name := range []string{"discovery", "backup"} {
		if have := len(s.stores[name].Entries("other")); have != 3 || s.recordsIn(name) != 1 {
			t.Errorf("%s lists %d Pods in the new service, want 3, and has %d records, want 1", name, have, s.recordsIn(name))
		}
	}
}

// TestARegistryWaitsForWhatIsLeft keeps a Registry whose only user has vanished.
func TestARegistryWaitsForWhatIsLeft(t *testing.T) {
	s := registeredWorld(t, defects{})
	s.passes(1)
	s.vanish("nginx")
	s.passes(1)
	if err := s.server.Delete("user", "Registry", types.NamespacedName{Name: "discovery"}, model.Deletion{}); err != nil {
		t.Fatal(err)
	}
	s.refresh()
	s.probe()
	if s.registry("discovery") == nil {
		t.Fatal("the Registry is gone, and has entries in it")
	}
	for _, pod := range s.pods() {
		if have := model.Condition(pod, usher.ConditionRegistered).Status; have != corev1.ConditionTrue && have != corev1.ConditionUnknown {
			t.Errorf("%s says %q", pod.Name, have)
		}
	}
}

// TestAnOldCacheRegistersNothing starts a process whose cache shows what holds entries as it
// was before it vanished.
func TestAnOldCacheRegistersNothing(t *testing.T) {
	for name, old := range map[string]struct {
		kind  model.Kind
		since func(s *simulation, vanished *usher.Registration)
		lists int
	}{
		"the Registry has no records any more": {"Registry", func(s *simulation, r *usher.Registration) { s.make(r) }, 1},
		"the Registry is gone": {"Registry", func(s *simulation, r *usher.Registration) {
			s.make(r)
			if err := s.server.Delete("user", "Registry", types.NamespacedName{Name: "discovery"}, model.Deletion{}); err != nil {
				s.Fatal(err)
			}
			s.refresh()
			s.probe()
		}, 0},
		"the Registration is gone": {"Registration", func(*simulation, *usher.Registration) {}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSimulation(t)
			s.populate(1)
			s.passes(2)
			before := s.cached[old.kind]
			vanished := s.vanish("nginx")
			s.passes(3)
			s.lists(0, 0)
			old.since(s, vanished)
			s.refresh()
			s.cached[old.kind] = before
			s.restart()
			s.pass()
			s.lists(0, 0)
			s.wait(time.Second)
			s.passes(2)
			if have := s.listedIn("discovery"); have != old.lists {
				t.Errorf("discovery lists %d Pods once the cache is up to date, want %d", have, old.lists)
			}
		})
	}
}

// TestARecordIsWrittenBeforeItsRegistrationGoes changes a Pod while its entry is removed: what
// the operator has seen go is not on the Pod yet, so the Registry has to remember where it was.
func TestARecordIsWrittenBeforeItsRegistrationGoes(t *testing.T) {
	s := newSimulation(t)
	s.populate(1)
	s.passes(2)
	s.vanish("nginx")
	s.refresh()
	s.weigh(s.pods()[0], "5")
	s.pass()
	s.lists(0, 0)
	held := func() bool { return controllerutil.ContainsFinalizer(s.pods()[0], usher.Finalizer) }
	s.passes(2)
	if !held() {
		t.Error("the Pod is let go before its callers know")
	}
	s.wait(propagation)
	s.passes(1)
	if held() {
		t.Error("the Pod is never let go")
	}
}

// TestARegistrationGoesBeforeCallersAreBack vanishes while a registry that its Pod has left is
// away: the Pod is held until all callers are back.
func TestARegistrationGoesBeforeCallersAreBack(t *testing.T) {
	s := newSimulation(t)
	s.populate(1)
	s.passes(2)
	s.label(s.pods()[0], "other", "")
	s.passes(2)
	s.lists(0, 0)
	s.breaks("discovery", memory.Down)
	s.wait(propagation)
	s.refresh()
	s.probe()
	s.vanish("nginx")
	s.wait(20 * time.Second)
	s.breaks("discovery", memory.None)
	released := func() bool { return !controllerutil.ContainsFinalizer(s.pods()[0], usher.Finalizer) }
	for _, span := range []time.Duration{propagation, plan.DefaultAfterOutage} {
		s.refresh()
		s.probe()
		s.passes(2)
		if released() {
			t.Fatal("the Pod is let go before callers are back")
		}
		s.wait(span)
	}
	s.passes(1)
	if !released() {
		t.Error("the Pod is never let go")
	}
}

// TestWhatReadingPodsChangesIsConfirmed starts a process whose cache shows two evictions before
// their drains: once it has read that one Pod has left, the budget holds the other one back,
// which has left as well.
func TestWhatReadingPodsChangesIsConfirmed(t *testing.T) {
	s := simulate(t, 1, features{guard: true, budget: 1}, defects{})
	for _, name := range []string{"nginx-2", "nginx-4"} {
		s.create(name, "")
		s.kubelets()
		s.kubelets()
	}
	s.passes(2)
	s.server.CountBudgets()
	for _, pod := range s.pods() {
		s.ask(actorUser, pod, true, time.Minute)
		s.call()
		s.wait(2 * clockSkew)
	}
	before := s.server.Objects.Clone()
	s.ask(actorReplicaSet, s.pods()[0], false, time.Minute)
	s.call()
	s.passes(2)
	s.wait(propagation)
	s.passes(2)
	s.lists(0, 0)
	s.cached = before
	s.restart()
	s.pass()
	s.lists(0, 0)
}
