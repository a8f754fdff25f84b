// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// orphan is an entry of ours whose Pod is not known.
func orphan(n int) registry.Entry {
	name := fmt.Sprintf("lost-%d", n)
	return registry.Entry{ID: namespace + "." + name, Address: "10.9.9.9", Port: 80, Weight: 10, Version: "3",
		Owner: registry.Owner{Cluster: here, Namespace: namespace, Registration: "nginx", Pod: name, PodUID: "uid-" + name}}
}

// sweeping is a snapshot of a sweep, with registered Pods and orphans.
func sweeping(pods, orphans int, changes ...func(*fixture)) func(*fixture) {
	return func(f *fixture) {
		f.Sweep[target("discovery")] = true
		for n := range pods {
			f.add(fmt.Sprintf("nginx-%d", n), appsv1alpha1.StateNormal).registered("discovery")
		}
		for n := range orphans {
			f.seed("discovery", orphan(n))
		}
		for _, change := range changes {
			change(f)
		}
	}
}

// stray adds one more entry.
func stray(change func(*registry.Entry)) func(*fixture) {
	return func(f *fixture) {
		e := orphan(0)
		change(&e)
		f.seed("discovery", e)
	}
}

func TestSweeps(t *testing.T) {
	run(t, []planCase{
		{"orphans up to the floor go at once", sweeping(3, 3),
			[]string{"sweep discovery lost-0", "sweep discovery lost-1", "sweep discovery lost-2"}},
		{"more than that are left", sweeping(2, 3), nil},
		{"until another sweep finds them again", sweeping(2, 3, func(f *fixture) {
			f.Suspects[target("discovery")] = map[string]bool{orphan(0).ID: true, orphan(2).ID: true}
		}), []string{"sweep discovery lost-0", "sweep discovery lost-2"}},
		{"without a sweep none is looked for", sweeping(3, 1, func(f *fixture) { f.Sweep = nil }), nil},
		{"entries of a Registration that is gone are orphans", sweeping(3, 0, stray(func(e *registry.Entry) {
			e.Owner.Namespace, e.Owner.Registration = "other", "gone"
		})), []string{"sweep discovery lost-0"}},
		{"an earlier Pod of the same name is another one", sweeping(2, 0, func(f *fixture) {
			old := f.Pods[0].DeepCopy()
			old.UID = "older"
			f.seed("discovery", (&podBuilder{f, old}).entry("nginx"))
		}), []string{"sweep discovery nginx-0"}},
		{"entries of another cluster are not ours", sweeping(3, 0, stray(func(e *registry.Entry) { e.Owner.Cluster = "elsewhere" })), nil},
		{"nor are those of nobody", sweeping(3, 0, stray(func(e *registry.Entry) { e.Owner = registry.Owner{} })), nil},
		{"those of another namespace are left to its pass", sweeping(3, 0, func(f *fixture) { f.Known["other/nginx"] = true },
			stray(func(e *registry.Entry) { e.Owner.Namespace = "other" })), nil},
		{"a registry that cannot be listed is left alone", sweeping(3, 1, func(f *fixture) { f.down("discovery") }), nil},
	})
}

// TestSuspects: a sweep names all orphans that it found, also those that it left.
func TestSuspects(t *testing.T) {
	f := newFixture()
	sweeping(2, 3)(f)
	if changes := Make(f.Snapshot).Changes; len(changes) != 1 || len(changes[0].Suspects) != 3 || len(changes[0].Orphans) != 0 {
		t.Errorf("the sweep of 3 orphans in 5 entries made %+v", changes)
	}
}

func TestNeeds(t *testing.T) {
	settled := func(f *fixture) *podBuilder {
		return f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "false").registered("discovery")
	}
	discovery := []Target{target("discovery")}
	for _, c := range []struct {
		name  string
		given func(*fixture)
		want  []Target
	}{
		{"nothing for settled Pods", func(f *fixture) { settled(f) }, nil},
		{"nothing for Pods that are not ready and nowhere", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).ready(false)
		}, nil},
		{"nothing for Pods that have left", func(f *fixture) {
			settled(f).ready(false).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, nil},
		{"nothing for Pods that nobody matches", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).label("app", "other")
		}, nil},
		{"Pods that join", func(f *fixture) { f.add("a", appsv1alpha1.StateNormal) }, discovery},
		{"Pods that leave", func(f *fixture) { settled(f).ready(false) }, discovery},
		{"Pods that may have an entry, after a crash", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).finalizers(ours).ready(false)
		}, discovery},
		{"Pods at a gate", func(f *fixture) { settled(f).label(keyCreated, "true") }, discovery},
		{"Pods that are deleted", func(f *fixture) { settled(f).terminating(0) }, discovery},
		{"Pods that left the selector", func(f *fixture) { settled(f).label("app", "other") }, discovery},
		{"Pods that left one of two selectors", func(f *fixture) {
			f.mesh()
			settled(f).named("nginx,second")
		}, []Target{target("mesh")}},
		{"nothing for Pods that another selector does not match", func(f *fixture) {
			f.mesh()
			settled(f).named("nginx")
		}, nil},
		{"Pods that match a second selector", func(f *fixture) {
			f.mesh()
			settled(f).named("nginx").label("track", "edge")
		}, []Target{target("discovery"), target("mesh")}},
		{"any that may have entries of a Pod that does not say", func(f *fixture) {
			f.mesh()
			settled(f)
		}, []Target{target("mesh")}},
		{"what is dirty", func(f *fixture) { f.Due = map[Target]bool{target("discovery"): true} }, discovery},
		{"what is to be swept", func(f *fixture) { f.Sweep = map[Target]bool{target("discovery"): true} }, discovery},
		{"a spec that is new", func(f *fixture) { f.Registrations[0].Generation = 2 }, discovery},
		{"a place that was left", func(f *fixture) {
			f.registry("backup")
			f.Registrations[0].Spec.Registries = []string{"backup"}
		}, discovery},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture()
			c.given(f)
			if diff := cmp.Diff(c.want, Needs(f.Snapshot)); diff != "" {
				t.Errorf("the places differ (-want +have):\n%s", diff)
			}
		})
	}
}

func TestTargets(t *testing.T) {
	discovery, backup := target("discovery"), target("backup")
	f := newFixture()
	f.registry("backup")
	r := f.Registrations[0]
	r.Spec.Registries = []string{"backup"}
	check := func(what string, have, want []usherv1alpha1.Target) {
		t.Helper()
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s differs (-want +have):\n%s", what, diff)
		}
	}

	b := f.add("a", appsv1alpha1.StateNormal).registered("discovery")
	o := Make(f.Snapshot).Outcomes[0]
	check("what is recorded before the new place is used", o.Targets, []usherv1alpha1.Target{backup, discovery})
	check("what is kept before that is recorded", o.Kept, []usherv1alpha1.Target{discovery})

	r.Status.Targets = o.Targets
	check("what is kept while the old one lists something", Make(f.Snapshot).Outcomes[0].Kept, []usherv1alpha1.Target{backup, discovery})

	f.Listings[target("discovery")] = Listing{Entries: []registry.Entry{}}
	check("what is kept when it is empty", Make(f.Snapshot).Outcomes[0].Kept, []usherv1alpha1.Target{backup})

	f.down("discovery")
	check("what is kept when that is not known", Make(f.Snapshot).Outcomes[0].Kept, []usherv1alpha1.Target{backup, discovery})

	delete(f.Registries, "discovery")
	check("what is kept when nobody can say", Make(f.Snapshot).Outcomes[0].Kept, []usherv1alpha1.Target{backup})

	b.ready(false)
	r.Status.Targets = nil
	if o := Make(f.Snapshot).Outcomes[0]; o.Protected || len(o.Targets) > 0 {
		t.Errorf("a Registration without a Pod to register records %v", o.Targets)
	}
}

func TestADeletedRegistrationGoesLast(t *testing.T) {
	f := newFixture()
	b := f.add("a", appsv1alpha1.StateNormal).registered("discovery")
	f.Registrations[0].DeletionTimestamp = &metav1.Time{Time: epoch}
	released := func() bool { return Make(f.Snapshot).Outcomes[0].Released }
	if released() {
		t.Error("it went before its entries")
	}
	f.Listings[target("discovery")] = Listing{Entries: []registry.Entry{}}
	if released() {
		t.Error("it went before its Pods were let go")
	}
	b.pod.Finalizers = nil
	if !released() {
		t.Error("it is held by nothing")
	}
	f.down("discovery")
	p := Make(f.Snapshot)
	if p.Outcomes[0].Released || len(p.Waiting) != 1 || p.Waiting[0].Reason != ReasonRegistryUnavailable {
		t.Errorf("while the registry is down: released %t, waiting %v", p.Outcomes[0].Released, p.Waiting)
	}
}
