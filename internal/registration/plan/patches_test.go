// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPatchesTouchOnlyTheirOwn(t *testing.T) {
	f := newFixture()
	b := f.add("a", appsv1alpha1.StatePreparingDelete).finalizers("example.com/theirs", usherv1alpha1.Finalizer, "example.com/more").
		drained(GatePreDelete, time.Minute-time.Second, map[string]time.Duration{"discovery": 6 * time.Second})
	b.pod.ResourceVersion = "42"
	p := Make(f.Snapshot)
	if len(p.Patches) != 1 {
		t.Fatalf("the plan is %v, want one patch", render(p))
	}
	have, err := metadata(&p.Patches[0])
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"uid": "uid-a-0000", "resourceVersion": "42",
		"labels":      map[string]any{keyDelete: "false"},
		"annotations": map[string]any{usherv1alpha1.AnnotationDrain: nil},
		"finalizers":  []any{"example.com/theirs", "example.com/more"},
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("the patch differs (-want +have):\n%s", diff)
	}
}

func TestRecordsKeepTheirTimesExactly(t *testing.T) {
	at := epoch.Add(123456789 * time.Nanosecond)
	record := Record{Gate: GatePreDelete, Began: at, Gone: map[string]time.Time{"x": at}}
	text, err := record.encode()
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{usherv1alpha1.AnnotationDrain: text}}}
	if have := ReadRecord(pod); !record.saidBy(have) {
		t.Errorf("%+v came back as %+v: a wait that is cut short loses requests", record, have)
	}
}

// TestNamesGoWithTheFinalizer looks at what is sent.
func TestNamesGoWithTheFinalizer(t *testing.T) {
	f := newFixture()
	for _, c := range []struct {
		given *podBuilder
		want  map[string]any
	}{
		{f.add("a", appsv1alpha1.StateNormal), map[string]any{usherv1alpha1.AnnotationRegistrations: "nginx"}},
		{f.add("b", appsv1alpha1.StateNormal).label("app", "other").registered().named("nginx").
			drained(GateLeaving, 6*time.Second, map[string]time.Duration{"discovery": 5 * time.Second}),
			map[string]any{usherv1alpha1.AnnotationRegistrations: nil, usherv1alpha1.AnnotationDrain: nil}},
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

// TestTakenBack: the request goes, and a ReplicaSet's deletion cost is as it was, unless
// somebody has set another one since.
func TestTakenBack(t *testing.T) {
	kept := "7"
	for name, c := range map[string]struct {
		cost string
		old  *string
		want map[string]any
	}{
		"no cost before":   {cost: DeletionCost, want: map[string]any{corev1.PodDeletionCost: nil}},
		"a cost before":    {cost: DeletionCost, old: &kept, want: map[string]any{corev1.PodDeletionCost: "7"}},
		"another cost now": {cost: "5", old: &kept, want: map[string]any{}},
	} {
		f := newFixture()
		b := f.add("a", "").requested(time.Hour, func(r *usherv1alpha1.DeletionRequest) { r.DeletionCost = c.old })
		b.pod.Annotations[corev1.PodDeletionCost] = c.cost
		p := Make(f.Snapshot)
		if len(p.Patches) != 1 || p.Patches[0].TakenBack == nil || p.Patches[0].TakenBack.By != "ann" {
			t.Fatalf("%s: %+v", name, p.Patches)
		}
		data, err := metadata(&p.Patches[0])
		if err != nil {
			t.Fatal(err)
		}
		c.want[usherv1alpha1.AnnotationDeletionRequest] = nil
		if diff := cmp.Diff(map[string]any(c.want), data["annotations"]); diff != "" {
			t.Errorf("%s: want -, got +:\n%s", name, diff)
		}
	}
}

// TestUntil: the record says when callers know of what is gone, and whether the drain ends then.
func TestUntil(t *testing.T) {
	f := newFixture()
	f.registry("backup")
	f.Registrations[0].Spec.Registries = []string{"discovery", "backup"}
	b := f.add("a", appsv1alpha1.StateNormal).finalizers(usherv1alpha1.Finalizer).in("backup").requested(0)
	for name, c := range map[string]struct {
		in   []registry.Entry
		end  time.Time
		gone map[string]time.Duration
	}{
		"backup lists it":              {in: f.Listings[target("backup")].Entries},
		"backup has just let it go":    {end: epoch.Add(5 * time.Second), gone: map[string]time.Duration{"discovery": 3 * time.Second}},
		"the record does not say when": {end: epoch.Add(3 * time.Second), gone: map[string]time.Duration{"discovery": 3 * time.Second, "backup": 2 * time.Second, "until": time.Hour}},
	} {
		f.Listings[target("backup")] = Listing{Entries: c.in}
		b.drained(GateRequested, 4*time.Second, c.gone)
		p := Make(f.Snapshot)
		if len(p.Patches) != 1 || p.Patches[0].Drain == nil || !p.Patches[0].Drain.End().Equal(c.end) || p.Patches[0].Drain.Until.IsZero() {
			t.Errorf("%s: %+v", name, p.Patches)
		}
	}
}
