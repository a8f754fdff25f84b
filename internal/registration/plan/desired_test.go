// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// lost is a Pod whose node fell silent some time ago.
func (b *podBuilder) lost(ago time.Duration) *podBuilder {
	b.condition(corev1.PodReady, corev1.ConditionFalse)
	last := len(b.pod.Status.Conditions) - 1
	b.pod.Status.Conditions[last].LastTransitionTime = metav1.NewTime(epoch.Add(-ago))
	return b
}

// settledPods adds Pods that are registered and ready.
func (f *fixture) settledPods(names ...string) {
	for _, name := range names {
		f.add(name, appsv1alpha1.StateNormal).registered("discovery")
	}
}

func (f *fixture) nodes(grace time.Duration, percent int32) {
	f.Registrations[0].Spec.NodeFailure = &usherv1alpha1.NodeFailure{
		Grace: &metav1.Duration{Duration: grace}, MaxPercent: &percent,
	}
}

func TestNodeFailure(t *testing.T) {
	const long = time.Hour
	dead := func(f *fixture, name string, ago time.Duration) *podBuilder {
		return f.add(name, appsv1alpha1.StateNormal).registered("discovery").lost(ago)
	}
	run(t, []planCase{
		{"it leaves after the grace", func(f *fixture) { f.settledPods("b"); dead(f, "a", 15*time.Second) },
			[]string{"remove discovery a", "wait a leaving discovery StillListed"}},
		{"it stays during the grace", func(f *fixture) { f.settledPods("b"); dead(f, "a", 10*time.Second) },
			[]string{"again in 5s"}},
		{"it is not put back during the grace", func(f *fixture) {
			f.settledPods("b")
			f.add("a", appsv1alpha1.StateNormal).registered().lost(time.Second)
		}, []string{"patch a: registered=False", "again in 14s"}},
		{"it comes back with its node", func(f *fixture) {
			f.settledPods("b")
			f.add("a", appsv1alpha1.StateNormal).finalizers(ours).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"put discovery a", "wait a joining discovery NotListedYet"}},
		{"the last one stays", func(f *fixture) { f.nodes(0, 100); dead(f, "a", long) },
			[]string{"patch a: registered=True(NodeSilent)", "wait a leaving NodeSilent"}},
		{"of two silent ones one stays", func(f *fixture) { f.nodes(0, 100); dead(f, "a", time.Minute); dead(f, "b", long) },
			[]string{"remove discovery b", "patch a: registered=True(NodeSilent)",
				"wait a leaving NodeSilent", "wait b leaving discovery StillListed"}},
		{"no more than the share leave", func(f *fixture) {
			f.settledPods("e")
			dead(f, "a", long)
			dead(f, "b", long)
			dead(f, "c", long)
		}, []string{"remove discovery a", "remove discovery b", "patch c: registered=True(NodeSilent)",
			"wait a leaving discovery StillListed", "wait b leaving discovery StillListed", "wait c leaving NodeSilent"}},
		{"a share of none", func(f *fixture) { f.nodes(0, 0); f.settledPods("b", "c"); dead(f, "a", long) },
			[]string{"patch a: registered=True(NodeSilent)", "wait a leaving NodeSilent"}},
		{"Pods that are not ready by themselves do not count", func(f *fixture) {
			f.add("b", appsv1alpha1.StateNormal).ready(false)
			f.add("c", appsv1alpha1.StatePreparingUpdate).unlabel(keyInPlace)
			dead(f, "a", long)
		}, []string{"patch a: registered=True(NodeSilent)", "wait a leaving NodeSilent"}},
		{"a drain goes on", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingDelete).registered("discovery").lost(long)
		}, []string{"remove discovery a", "patch a: drain(preDelete 0s: )", "wait a preDelete discovery StillListed", "again in 1m0s"}},
		{"a Pod that is deleted leaves", func(f *fixture) { dead(f, "a", long).terminating(time.Second) },
			[]string{"remove discovery a", "wait a deletion discovery StillListed", "again in 59s"}},
	})
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

func (f *fixture) onUpdate(policy usherv1alpha1.InPlaceUpdatePolicy) {
	f.Registrations[0].Spec.OnInPlaceUpdate = policy
}

// failsOver makes discovery one that can hold entries back.
func failsOver(f *fixture) {
	f.onUpdate(usherv1alpha1.InPlaceUpdateFailOver)
	f.Registries["discovery"] = RegistryState{Prefix: "services", HoldsBack: true}
}

// hold takes the Pod's entry in discovery out of service.
func (b *podBuilder) hold() *podBuilder {
	entries := b.f.Listings[target("discovery")].Entries
	for i := range entries {
		if entries[i].ID == EntryID(b.pod) {
			entries[i].Weight = 0
		}
	}
	return b
}

func TestFailOver(t *testing.T) {
	run(t, []planCase{
		{"the entry is held back", func(f *fixture) {
			failsOver(f)
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery")
		}, []string{"hold discovery a", "patch a: drain(inPlaceUpdate 0s: )",
			"wait a inPlaceUpdate discovery StillListed", "again in 1m0s"}},
		{"requests in flight hold the hook, and it is asked for again soon", func(f *fixture) {
			failsOver(f)
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery").hold().unsettle(inFlight).
				drained(GateInPlaceUpdate, 10*time.Second, nil)
		}, []string{"hold discovery a", "patch a: registered=True(Draining)",
			"wait a inPlaceUpdate discovery Draining", "again in 1s"}},
		{"then callers have time to hear of it", func(f *fixture) {
			failsOver(f)
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery").hold()
		}, []string{"patch a: drain(inPlaceUpdate 0s: discovery 0s) registered=False",
			"wait a inPlaceUpdate discovery Propagation", "again in 5s"}},
		{"then the hook is released", func(f *fixture) {
			failsOver(f)
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).in("discovery").hold().
				drained(GateInPlaceUpdate, 10*time.Second, map[string]time.Duration{"discovery": 5 * time.Second}).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"patch a: unready-blocker-inplace=false -drain"}},
		{"it stays so while the Pod is updated", func(f *fixture) {
			failsOver(f)
			f.add("a", appsv1alpha1.StateUpdating).label(keyInPlace, "false").finalizers(ours).in("discovery").hold().ready(false).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, nil},
		{"and is repaired if somebody puts it into service", func(f *fixture) {
			failsOver(f)
			f.add("a", appsv1alpha1.StateUpdating).label(keyInPlace, "false").registered("discovery").ready(false)
		}, []string{"hold discovery a", "wait a leaving discovery StillListed"}},
		{"it comes back with the Pod", func(f *fixture) {
			failsOver(f)
			f.add("a", appsv1alpha1.StateUpdated).label(keyInPlace, "false").finalizers(ours).in("discovery").hold().
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"put discovery a", "wait a updated discovery NotListedYet"}},
		{"what is not there is not made", func(f *fixture) {
			failsOver(f)
			f.add("a", appsv1alpha1.StatePreparingUpdate).unlabel(keyInPlace).finalizers(ours)
		}, []string{"patch a: registered=False"}},
		{"a deletion removes it", func(f *fixture) {
			failsOver(f)
			f.add("a", appsv1alpha1.StatePreparingDelete).finalizers(ours).in("discovery").hold()
		}, []string{"remove discovery a", "patch a: drain(preDelete 0s: )",
			"wait a preDelete discovery StillListed", "again in 1m0s"}},
		{"where the registry cannot it is removed", func(f *fixture) {
			failsOver(f)
			f.Registries["discovery"] = RegistryState{Prefix: "services"}
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery")
		}, []string{"remove discovery a", "patch a: drain(inPlaceUpdate 0s: )",
			"wait a inPlaceUpdate discovery StillListed", "again in 1m0s"}},
		{"one that was turned off by hand is no reason to let the Pod go that stays", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery").hold()
		}, []string{"remove discovery a", "patch a: drain(inPlaceUpdate 0s: )",
			"wait a inPlaceUpdate discovery StillListed", "again in 1m0s"}},
	})
}

func TestStay(t *testing.T) {
	run(t, []planCase{
		{"the hook is released at once", func(f *fixture) {
			f.onUpdate(usherv1alpha1.InPlaceUpdateStay)
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery")
		}, []string{"patch a: unready-blocker-inplace=false"}},
		{"the entry stays while the Pod is not ready", func(f *fixture) {
			f.onUpdate(usherv1alpha1.InPlaceUpdateStay)
			f.add("a", appsv1alpha1.StateUpdating).label(keyInPlace, "false").registered("discovery").ready(false)
		}, nil},
		{"and until it is ready again", func(f *fixture) {
			f.onUpdate(usherv1alpha1.InPlaceUpdateStay)
			f.add("a", appsv1alpha1.StateUpdated).label(keyInPlace, "false").registered("discovery").ready(false)
		}, []string{"wait a updated PodNotReady"}},
		{"when the hook is set again", func(f *fixture) {
			f.onUpdate(usherv1alpha1.InPlaceUpdateStay)
			f.add("a", appsv1alpha1.StateUpdated).label(keyInPlace, "false").registered("discovery")
		}, []string{"patch a: unready-blocker-inplace=true"}},
		{"a deletion drains", func(f *fixture) {
			f.onUpdate(usherv1alpha1.InPlaceUpdateStay)
			f.add("a", appsv1alpha1.StatePreparingDelete).registered("discovery")
		}, []string{"remove discovery a", "patch a: drain(preDelete 0s: )",
			"wait a preDelete discovery StillListed", "again in 1m0s"}},
		{"another Registration still has to let go", func(f *fixture) {
			f.onUpdate(usherv1alpha1.InPlaceUpdateStay)
			f.registry("mesh")
			f.registration("second", "mesh")
			b := f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery")
			e := b.entry("second")
			f.Listings[target("mesh")] = Listing{Entries: append(f.Listings[target("mesh")].Entries, e)}
		}, []string{"remove mesh a", "patch a: drain(inPlaceUpdate 0s: )",
			"wait a inPlaceUpdate mesh StillListed", "again in 1m0s"}},
		{"and the record of its drain stays", func(f *fixture) {
			f.onUpdate(usherv1alpha1.InPlaceUpdateStay)
			f.registry("mesh")
			f.registration("second", "mesh")
			b := f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).in("discovery").
				drained(GateInPlaceUpdate, 10*time.Second, nil).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
			b.pod.Annotations[usherv1alpha1.AnnotationDrain] = `{"gate":"inPlaceUpdate","began":"` +
				epoch.Add(-10*time.Second).Format(time.RFC3339) + `","gone":{"second@` + nameOf(target("mesh")) + `":"` +
				epoch.Add(-3*time.Second).Format(time.RFC3339) + `"}}`
		}, []string{"patch a: registered=False(Propagation)",
			"wait a inPlaceUpdate mesh Propagation", "again in 2s"}},
	})
}
