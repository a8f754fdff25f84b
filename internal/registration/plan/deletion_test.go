// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// requested gives the Pod a request for its deletion that was made so long ago.
func (b *podBuilder) requested(ago time.Duration, change ...func(*usherv1alpha1.DeletionRequest)) *podBuilder {
	at := metav1.NewMicroTime(epoch.Add(-ago))
	request := usherv1alpha1.DeletionRequest{Since: at, At: at, By: "ann"}
	for _, c := range change {
		c(&request)
	}
	text, err := json.Marshal(request)
	if err != nil {
		panic(err) // A request always encodes.
	}
	if b.pod.Annotations == nil {
		b.pod.Annotations = map[string]string{}
	}
	b.pod.Annotations[usherv1alpha1.AnnotationDeletionRequest] = string(text)
	return b
}

func eviction(r *usherv1alpha1.DeletionRequest)     { r.Eviction = true }
func namedRequest(r *usherv1alpha1.DeletionRequest) { r.Named = true }

// budget adds a PodDisruptionBudget for all Pods.
func (f *fixture) budget(allowed int32) {
	f.Budgets = append(f.Budgets, &policyv1.PodDisruptionBudget{
		Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	})
}

// TestRequested: a Pod whose deletion was asked for leaves its registries, keeps the
// finalizer until callers know, and comes back if nobody deletes it.
func TestRequested(t *testing.T) {
	const gate = string(GateRequested)
	registered := func(f *fixture, name string) *podBuilder {
		return f.add(name, appsv1alpha1.StateNormal).registered("discovery")
	}
	gone := func(f *fixture, name string, ago time.Duration) *podBuilder {
		return f.add(name, appsv1alpha1.StateNormal).finalizers(ours).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionTrue).
			drained(GateRequested, 6*time.Second, map[string]time.Duration{"discovery": ago})
	}
	run(t, []planCase{
		{"the entry goes, and a record begins", func(f *fixture) {
			registered(f, "a").requested(0)
		}, []string{"remove discovery a", "patch a: drain(" + gate + " 0s: )", "wait a " + gate + " discovery StillListed", "again in 1m0s"}},
		{"the record remembers when the entry was gone", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).finalizers(ours).requested(time.Second)
		}, []string{"patch a: drain(" + gate + " 0s: discovery 0s) registered=False", "wait a " + gate + " discovery Propagation", "again in 5s"}},
		{"callers may still use it", func(f *fixture) {
			gone(f, "a", 3*time.Second).requested(time.Second).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"wait a " + gate + " discovery Propagation", "again in 2s"}},
		{"callers know: the finalizer goes", func(f *fixture) {
			gone(f, "a", 5*time.Second).requested(time.Second)
		}, []string{"patch a: -" + ours + " -drain registered=False", "again in 1m59s"}},
		{"a drained Pod waits for its deletion", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).requested(time.Minute).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"again in 1m0s"}},
		{"nobody deletes it: the request is taken back", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).requested(2*time.Minute).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"patch a: taken back"}},
		{"a longer timeout of its Registration counts", func(f *fixture) {
			f.Registrations[0].Spec.Drain.RequestTimeout = &metav1.Duration{Duration: 3 * time.Minute}
			f.add("a", appsv1alpha1.StateNormal).requested(2*time.Minute).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"again in 1m0s"}},
		{"a CloneSet acts on a named deletion, not the operator", func(f *fixture) {
			registered(f, "a").requested(0, namedRequest)
		}, nil},
		{"the registry is down: the finalizer stays", func(f *fixture) {
			f.down("discovery")
			registered(f, "a").requested(time.Second)
		}, []string{"patch a: drain(" + gate + " 0s: ) registered=True(RegistryUnavailable)", "wait a " + gate + " discovery RegistryUnavailable", "again in 1m0s"}},
		{"FailOver keeps no entry of a Pod that goes", func(f *fixture) {
			state := f.Registries["discovery"]
			state.HoldsBack = true
			f.Registries["discovery"] = state
			f.Registrations[0].Spec.OnInPlaceUpdate = usherv1alpha1.InPlaceUpdateFailOver
			f.add("a", appsv1alpha1.StateUpdating).registered("discovery").requested(0)
		}, []string{"remove discovery a", "patch a: drain(" + gate + " 0s: )", "wait a " + gate + " discovery StillListed", "again in 1m0s"}},
		{"a budget lets evictions drain one by one, the oldest first", func(f *fixture) {
			f.budget(1)
			registered(f, "a").requested(time.Second, eviction)
			registered(f, "b").requested(2*time.Second, eviction)
		}, []string{"remove discovery b", "patch b: drain(" + gate + " 0s: )", "wait b " + gate + " discovery StillListed", "again in 1m0s"}},
		{"an eviction that drains uses up the budget until its Pod is gone", func(f *fixture) {
			f.budget(1)
			registered(f, "a").requested(5*time.Second, eviction)
			gone(f, "b", 3*time.Second).requested(time.Second, eviction).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"wait b " + gate + " discovery Propagation", "again in 2s"}},
		{"a drained Pod that is not Ready is in the budget's own count", func(f *fixture) {
			f.budget(1)
			registered(f, "a").requested(5*time.Second, eviction)
			f.add("b", appsv1alpha1.StateNormal).requested(time.Second, eviction).ready(false).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"remove discovery a", "patch a: drain(" + gate + " 0s: )", "wait a " + gate + " discovery StillListed", "again in 1m0s"}},
		{"a deletion asks no budget", func(f *fixture) {
			f.budget(0)
			registered(f, "a").requested(0)
		}, []string{"remove discovery a", "patch a: drain(" + gate + " 0s: )", "wait a " + gate + " discovery StillListed", "again in 1m0s"}},
	})
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

// TestUntil: the record says when a drain ends once every registry has let the Pod go.
func TestUntil(t *testing.T) {
	f := newFixture()
	f.registry("backup")
	f.Registrations[0].Spec.Registries = []string{"discovery", "backup"}
	b := f.add("a", appsv1alpha1.StateNormal).finalizers(ours).in("backup").requested(0)
	if p := Make(f.Snapshot); len(p.Patches) != 1 || p.Patches[0].Drain == nil || !p.Patches[0].Drain.Until.IsZero() {
		t.Errorf("backup lists it: %+v", p.Patches)
	}
	f.Listings[target("backup")] = Listing{Entries: f.Listings[target("discovery")].Entries}
	b.drained(GateRequested, 4*time.Second, map[string]time.Duration{"discovery": 3 * time.Second}).requested(0)
	if p := Make(f.Snapshot); len(p.Patches) != 1 || p.Patches[0].Drain == nil || !p.Patches[0].Drain.Until.Equal(epoch.Add(5*time.Second)) {
		t.Errorf("backup has just let it go: %+v", p.Patches[0].Drain)
	}
}

// TestVanishedRegistrationHolds: what only the record still knows holds the Pod as long as
// the record says, and no longer.
func TestVanishedRegistrationHolds(t *testing.T) {
	for left, want := range map[time.Duration][]string{
		2 * time.Second: {"wait a inPlaceUpdate discovery Propagation", "again in 2s"},
		0:               {"patch a: unready-blocker-inplace=false -drain"},
	} {
		f := newFixture()
		b := f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		record := Record{Gate: GateInPlaceUpdate, Began: epoch.Add(-8 * time.Second), Until: epoch.Add(left), Gone: map[string]time.Time{
			"nginx@" + nameOf(target("discovery")): epoch.Add(-8 * time.Second),
			"gone@" + nameOf(target("discovery")):  epoch.Add(left - 5*time.Second),
		}}
		text, err := record.encode()
		if err != nil {
			t.Fatal(err)
		}
		b.pod.Annotations = map[string]string{usherv1alpha1.AnnotationDrain: text}
		if diff := cmp.Diff(want, render(Make(f.Snapshot))); diff != "" {
			t.Errorf("%s left: want -, got +:\n%s", left, diff)
		}
	}
}
