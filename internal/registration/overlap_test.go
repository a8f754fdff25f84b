// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

// respec changes the spec of a Registration.
func (s *simulation) respec(name string, change func(*usherv1alpha1.RegistrationSpec)) {
	s.Helper()
	var r usherv1alpha1.Registration
	if err := s.live.Get(s.Context(), types.NamespacedName{Namespace: namespace, Name: name}, &r); err != nil {
		s.Fatal(err)
	}
	change(&r.Spec)
	r.Generation++
	if err := s.live.Update(s.Context(), &r); err != nil {
		s.Fatal(err)
	}
}

// named makes the Pod say which Registrations may have entries of it.
func (b *podBuilder) named(names string) *podBuilder {
	if b.pod.Annotations == nil {
		b.pod.Annotations = map[string]string{}
	}
	b.pod.Annotations[usherv1alpha1.AnnotationRegistrations] = names
	return b
}

// mesh adds Registration second, which selects by another label.
func (f *fixture) mesh() {
	f.registry("mesh")
	f.registration("second", "mesh").Spec.Selector.MatchLabels = map[string]string{"track": edge}
}

func TestRegistrationsThatAPodHasLeft(t *testing.T) {
	// left is a Pod that second does not select any more.
	left := func(f *fixture, state appsv1alpha1.LifecycleState) *podBuilder {
		f.mesh()
		return f.add("a", state).registered("discovery").named("nginx,second")
	}
	listed := func(b *podBuilder) { b.f.seed("mesh", b.entry("second")) }
	drained := func(f *fixture) *podBuilder {
		b := left(f, appsv1alpha1.StatePreparingDelete).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse).
			drained(GatePreDelete, 6*time.Second, map[string]time.Duration{"discovery": 5 * time.Second}).named("nginx,second")
		f.Listings[place("discovery")] = Listing{}
		return b
	}
	run(t, []planCase{
		{"their entries go, and the Pod stays theirs until then", func(f *fixture) {
			listed(left(f, appsv1alpha1.StateNormal))
		}, []string{"remove mesh a", "wait a leaving mesh StillListed"}},
		{"when they are gone the Pod names them no more", func(f *fixture) {
			left(f, appsv1alpha1.StateNormal)
		}, []string{"patch a: in(nginx)"}},
		{"nor does one that named nobody, so that any might have entries", func(f *fixture) {
			delete(left(f, appsv1alpha1.StateNormal).pod.Annotations, usherv1alpha1.AnnotationRegistrations)
		}, []string{"patch a: in(nginx)"}},
		{"while their registry is down the Pod waits for it", func(f *fixture) {
			listed(left(f, appsv1alpha1.StateNormal))
			f.down("mesh")
		}, []string{"patch a: registered=True(RegistryUnavailable)", "wait a leaving mesh RegistryUnavailable"}},
		{"the finalizer waits for them", func(f *fixture) {
			left(f, appsv1alpha1.StateNormal).terminating(0)
			f.Listings[place("discovery")] = Listing{}
			f.down("mesh")
		}, []string{"patch a: registered=False(RegistryUnavailable)",
			"wait a deletion mesh RegistryUnavailable", "again in 1m0s"}},
		{"so does a hook, and for their callers", func(f *fixture) { drained(f) },
			[]string{"patch a: drain(preDelete 6s: discovery 5s, mesh 0s)", "wait a preDelete mesh Propagation", "again in 5s"}},
		{"then it is released", func(f *fixture) {
			f.Now = f.Now.Add(5 * time.Second)
			drained(f).pod.Annotations[usherv1alpha1.AnnotationDrain] = `{"gate":"preDelete","began":"2026-03-01T12:00:00Z",` +
				`"gone":{"nginx@discovery/services/nginx":"2026-03-01T12:00:00Z","second@mesh/services/nginx":"2026-03-01T12:00:00Z"}}`
		}, []string{"patch a: unready-blocker-delete=false -" + ours + " in(nginx) -drain"}},
		{"nobody waits for one that the Pod was never in", func(f *fixture) {
			left(f, appsv1alpha1.StateNormal).named("nginx").terminating(0)
			f.Listings[place("discovery")] = Listing{}
			f.down("mesh")
		}, []string{"patch a: -" + ours}},
		{"nor for one that is no more", func(f *fixture) {
			left(f, appsv1alpha1.StateNormal).named("nginx,third,second")
		}, []string{"patch a: in(nginx)"}},
		{"a Pod names one that it joins before it has an entry there", func(f *fixture) {
			left(f, appsv1alpha1.StateNormal).named("nginx").label("track", edge)
		}, []string{"protect a: in(nginx,second)", "patch a: registered=False", "wait a joining mesh NotListedYet"}},
	})
}

// TestNamesGoWithTheFinalizer looks at what is sent.
func TestNamesGoWithTheFinalizer(t *testing.T) {
	f := newFixture()
	for _, c := range []struct {
		given *podBuilder
		want  map[string]any
	}{
		{f.add("a", appsv1alpha1.StateNormal), map[string]any{usherv1alpha1.AnnotationRegistrations: "nginx"}},
		{f.add("b", appsv1alpha1.StateNormal).label("app", "other").registered().named("nginx"),
			map[string]any{usherv1alpha1.AnnotationRegistrations: nil}},
	} {
		plan := MakePlan(f.Snapshot)
		patches := slices.Concat(plan.Protect, plan.Patches)
		at := slices.IndexFunc(patches, func(p PodPatch) bool { return p.Pod.Name == c.given.pod.Name })
		sent, err := metadata(&patches[at])
		if diff := cmp.Diff(any(c.want), sent["annotations"]); diff != "" || err != nil {
			t.Errorf("%s: the annotations differ, %v (-want +have):\n%s", c.given.pod.Name, err, diff)
		}
	}
}

// overlapping has one Pod that both Registrations select: nginx in Registry backup,
// edge in discovery.
func overlapping(t *testing.T) *simulation {
	t.Helper()
	s := simulate(t, 1, features{second: true}, defects{})
	for name, registry := range map[string]string{"nginx": "backup", edge: "discovery"} {
		s.respec(name, func(spec *usherv1alpha1.RegistrationSpec) { spec.Registries = []string{registry} })
	}
	s.populate(1)
	pod := s.pods()[0]
	s.label(&pod, "nginx", edge)
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
	s.label(&pod, "nginx", "stable")
	s.passes(1)
	s.listsBoth(1, 0)
}

func TestAPodThatJoinsASecondSelectorJoinsItsRegistryAtOnce(t *testing.T) {
	s := overlapping(t)
	pod := s.pods()[0]
	s.label(&pod, "nginx", "stable")
	s.clock.SetTime(s.clock.Now().Add(defaultRepair))
	s.passes(2)
	s.listsBoth(1, 0)
	s.label(&pod, "nginx", edge)
	s.passes(1)
	s.listsBoth(1, 1)
}

// TestAPodJoinsASecondSelectorWhenItsRegistryIsBack does not wait for the next sweep.
func TestAPodJoinsASecondSelectorWhenItsRegistryIsBack(t *testing.T) {
	s := overlapping(t)
	pod := s.pods()[0]
	s.label(&pod, "nginx", "stable")
	s.clock.SetTime(s.clock.Now().Add(defaultRepair))
	s.passes(2)
	s.breaks("discovery", memory.Down)
	s.label(&pod, "nginx", edge)
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
		"the Pod is labelled anew": func(s *simulation) {
			pod := s.pods()[0]
			s.label(&pod, "nginx", "stable")
		},
		"the selector is changed": func(s *simulation) {
			s.respec(edge, func(spec *usherv1alpha1.RegistrationSpec) { spec.Selector.MatchLabels["more"] = "wanted" })
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
			s.delete(&pod)
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
	s.label(&pod, "nginx", "stable")
	s.enter(&pod, appsv1alpha1.StatePreparingDelete, "")
	for range 3 {
		s.passes(1)
		s.clock.SetTime(s.clock.Now().Add(simPropagation))
	}
	if pod = s.pods()[0]; pod.Labels[keyDelete] != "true" {
		t.Fatal("the hook was released while discovery is down")
	}
	s.breaks("discovery", memory.None)
	s.refresh()
	s.probe()
	for range 6 {
		s.passes(1)
		s.clock.SetTime(s.clock.Now().Add(simPropagation))
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
	have := secondUpdate(t, defects{expected: true, misreads: takesDrainsForOne})
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
	s.kubelet(&pod, false)
	for _, state := range []appsv1alpha1.LifecycleState{appsv1alpha1.StatePreparingUpdate,
		appsv1alpha1.StateNormal, appsv1alpha1.StatePreparingUpdate} {
		s.enter(&pod, state, "")
		s.passes(2)
		pod = s.pods()[0]
		s.clock.SetTime(s.clock.Now().Add(simDeadline))
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
	s.respec(edge, func(spec *usherv1alpha1.RegistrationSpec) { spec.Selector = later })
	s.passes(2)
	var r usherv1alpha1.Registry
	if err := s.live.Get(t.Context(), types.NamespacedName{Name: "discovery"}, &r); err != nil {
		t.Fatal(err)
	}
	if users := r.Status.Users; len(users) != 1 || users[0].Selector.MatchLabels["app"] != "nginx" {
		t.Errorf("discovery knows of %+v, want one with the later selector", users)
	}
	pod := s.pods()[0]
	s.label(&pod, "nginx", "stable")
	s.passes(1)
	s.breaks("discovery", memory.Down)
	s.vanish(edge)
	s.passes(1)
	s.delete(&pod)
	s.passes(2)
	s.listsBoth(0, 1)
}
