// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

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

// TestSuspects: a sweep names all orphans that it found, also those that it left.
func TestSuspects(t *testing.T) {
	f := newFixture()
	f.Sweep[target("discovery")] = true
	f.add("a", appsv1alpha1.StateNormal).registered("discovery")
	f.seed("discovery", orphan("lost-0"), orphan("lost-1"), orphan("lost-2"))
	if changes := Make(f.Snapshot).Changes; len(changes) != 1 || len(changes[0].Suspects) != 3 || len(changes[0].Orphans) != 0 {
		t.Errorf("the sweep of 3 orphans in 4 entries made %+v", changes)
	}
}

// TestAZoneFallsSilent lets half of many nodes fall silent one after the other,
// and then the rest: never do fewer than half of the Pods stay listed.
func TestAZoneFallsSilent(t *testing.T) {
	f := newFixture()
	for n := range 10 {
		f.add(fmt.Sprintf("p%d", n), appsv1alpha1.StateNormal).registered("discovery")
	}
	for n := range 10 {
		(&podBuilder{f, f.Pods[n]}).lost(time.Hour - time.Duration(n)*time.Minute)
		removed := 0
		for _, c := range Make(f.Snapshot).Changes {
			removed += len(c.Leaves)
		}
		if want := min(n+1, 5); removed != want {
			t.Errorf("with %d silent nodes %d Pods leave, want %d", n+1, removed, want)
		}
	}
}
