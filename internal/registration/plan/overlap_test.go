// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

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
	f.registration("second", "mesh").Spec.Selector.MatchLabels = map[string]string{"track": "edge"}
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
		f.Listings[target("discovery")] = Listing{}
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
			f.Listings[target("discovery")] = Listing{}
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
			f.Listings[target("discovery")] = Listing{}
			f.down("mesh")
		}, []string{"patch a: -" + ours}},
		{"nor for one that is no more", func(f *fixture) {
			left(f, appsv1alpha1.StateNormal).named("nginx,third,second")
		}, []string{"patch a: in(nginx)"}},
		{"a Pod names one that it joins before it has an entry there", func(f *fixture) {
			left(f, appsv1alpha1.StateNormal).named("nginx").label("track", "edge")
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
		plan := Make(f.Snapshot)
		patches := slices.Concat(plan.Protect, plan.Patches)
		at := slices.IndexFunc(patches, func(p PodPatch) bool { return p.Pod.Name == c.given.pod.Name })
		sent, err := metadata(&patches[at])
		if diff := cmp.Diff(any(c.want), sent["annotations"]); diff != "" || err != nil {
			t.Errorf("%s: the annotations differ, %v (-want +have):\n%s", c.given.pod.Name, err, diff)
		}
	}
}
