// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	ours    = usherv1alpha1.Finalizer
	hookFin = "example.com/hook"
)

type planCase struct {
	name  string
	given func(*fixture)
	want  []string
}

func run(t *testing.T, cases []planCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture()
			c.given(f)
			if diff := cmp.Diff(c.want, render(Make(f.Snapshot))); diff != "" {
				t.Errorf("the plan differs (-want +have):\n%s", diff)
			}
		})
	}
}

func TestJoining(t *testing.T) {
	run(t, []planCase{
		{"a Pod that is not ready is left alone", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").ready(false)
		}, []string{"wait a created PodNotReady"}},
		{"the finalizer comes before the first entry", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true")
		}, []string{"protect a: +" + ours + " in(nginx)", "wait a created discovery NotListedYet"}},
		{"then the entry", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").finalizers(ours)
		}, []string{"put discovery a", "wait a created discovery NotListedYet"}},
		{"the created hook is answered when the entry is read back", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").finalizers(ours).in("discovery")
		}, []string{"patch a: newly-create=false registered=True"}},
		{"and nothing is left to do", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "false").registered("discovery")
		}, nil},
		{"a Pod of another controller has no state and is Normal", func(f *fixture) {
			f.add("a", "").finalizers(ours)
		}, []string{"put discovery a", "wait a joining discovery NotListedYet"}},
		{"preNormal opens when the entry is read back", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingNormal).finalizers(ours).in("discovery")
		}, []string{"patch a: traffic-online=true registered=True"}},
		{"preNormal is not opened before that", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingNormal).finalizers(ours)
		}, []string{"put discovery a", "wait a preNormal discovery NotListedYet"}},
		{"preNormal with a finalizer", func(f *fixture) {
			f.lifecycle().PreNormal = &appsv1alpha1.LifecycleHook{FinalizersHandler: []string{hookFin}}
			f.Registrations[0].Spec.Hooks.PreNormal = hookFin
			f.add("a", appsv1alpha1.StatePreparingNormal).registered("discovery")
		}, []string{"patch a: +" + hookFin}},
		{"without a preNormal hook nothing joins before Normal", func(f *fixture) {
			f.Registrations[0].Spec.Hooks.PreNormal = ""
			f.add("a", appsv1alpha1.StatePreparingNormal)
		}, nil},
		{"created waits for Normal", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingNormal).label(keyCreated, "true").
				label(keyPreNormal, "true").registered("discovery")
		}, nil},
	})
}

func TestStayingIn(t *testing.T) {
	run(t, []planCase{
		{"an updated Pod is hooked again when it is listed", func(f *fixture) {
			f.add("a", appsv1alpha1.StateUpdated).label(keyInPlace, "false").registered("discovery")
		}, []string{"patch a: unready-blocker-inplace=true"}},
		{"an updated Pod that is not ready waits", func(f *fixture) {
			f.add("a", appsv1alpha1.StateUpdated).label(keyInPlace, "false").finalizers(ours).ready(false)
		}, []string{"patch a: registered=False", "wait a updated PodNotReady"}},
		{"a lost entry is written again", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).registered()
		}, []string{"put discovery a", "patch a: registered=False"}},
		{"metadata that is missing is written", func(f *fixture) {
			f.Registrations[0].Spec.Instance.Metadata = map[string]string{"zone": "a"}
			f.add("a", appsv1alpha1.StateNormal).registered("discovery")
		}, []string{"put discovery a"}},
		{"unless the registry cannot store it", func(f *fixture) {
			f.Registrations[0].Spec.Instance.Metadata = map[string]string{"zone": "a"}
			f.add("a", appsv1alpha1.StateNormal).registered("discovery")
			f.Listings[target("discovery")].Entries[0].NoMetadata = true
		}, nil},
		{"a value that cannot be used holds nothing", func(f *fixture) {
			f.Registrations[0].Spec.Instance.WeightFrom = weightFrom()
			f.add("a", appsv1alpha1.StatePreparingNormal).finalizers(ours).annotate("heavy").in("discovery")
		}, []string{"patch a: traffic-online=true registered=True"}},
		{"an entry with another weight is corrected", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).registered("discovery")
			f.Registrations[0].Spec.Instance.Weight = 20
		}, []string{"put discovery a"}},
		{"a Pod that is not ready any more leaves", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).registered("discovery").ready(false)
		}, []string{"remove discovery a", "wait a leaving discovery StillListed"}},
		{"our own readiness gate does not keep a Pod out", func(f *fixture) {
			b := f.add("a", appsv1alpha1.StateNormal).finalizers(ours).condition(corev1.PodReady, corev1.ConditionFalse)
			b.pod.Status.Conditions[1].Reason = reasonGates
			b.pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: usherv1alpha1.ConditionRegistered}}
		}, []string{"put discovery a", "wait a joining discovery NotListedYet"}},
		{"another readiness gate does", func(f *fixture) {
			b := f.add("a", appsv1alpha1.StateNormal)
			b.pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: appsv1alpha1.ConditionInPlaceUpdateReady}}
		}, nil},
		{"a port by name", func(f *fixture) {
			f.Registrations[0].Spec.Instance.Port = intstr.FromString("web")
			f.add("a", appsv1alpha1.StateNormal).registered("discovery")
		}, nil},
		{"a port that no container has", func(f *fixture) {
			f.Registrations[0].Spec.Instance.Port = intstr.FromString("grpc")
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").finalizers(ours)
		}, []string{"patch a: registered=False(PortNotFound)", "wait a created discovery PortNotFound"}},
	})
}

func TestTrouble(t *testing.T) {
	run(t, []planCase{
		{"one of two registries is down", func(f *fixture) {
			f.registry("backup")
			f.Registrations[0].Spec.Registries = []string{"discovery", "backup"}
			f.down("backup")
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").finalizers(ours)
		}, []string{"put discovery a", "patch a: registered=False(RegistryUnavailable)",
			"wait a created backup RegistryUnavailable", "wait a created discovery NotListedYet"}},
		{"both have to list it", func(f *fixture) {
			f.registry("backup")
			f.Registrations[0].Spec.Registries = []string{"discovery", "backup"}
			f.down("backup")
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").finalizers(ours).in("discovery")
		}, []string{"patch a: registered=Unknown(RegistryUnavailable)",
			"wait a created backup RegistryUnavailable"}},
		{"nothing is assumed of what was not listed", func(f *fixture) {
			f.Listings = map[Target]Listing{}
			f.add("a", appsv1alpha1.StateNormal).registered()
			f.add("b", appsv1alpha1.StatePreparingUpdate).registered()
			f.add("c", appsv1alpha1.StateNormal).registered().terminating(0)
		}, []string{"patch b: drain(inPlaceUpdate 0s: )", "wait b inPlaceUpdate discovery NotAskedYet",
			"wait c deletion discovery NotAskedYet", "again in 1m0s"}},
		{"a registry that does not exist", func(f *fixture) {
			f.Registrations[0].Spec.Registries = []string{"discovery", "nowhere"}
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").finalizers(ours).in("discovery")
		}, []string{"patch a: registered=False(RegistryNotFound)", "wait a created nowhere RegistryNotFound"}},
		{"a registry that is being deleted takes nobody new", func(f *fixture) {
			f.Registries["discovery"] = RegistryState{Prefix: "services", Leaving: true}
			f.Registrations[0].Status.Targets = nil
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true")
		}, []string{"patch a: registered=False(RegistryNotFound)", "wait a created discovery RegistryNotFound"}},
		{"but keeps those that it has", func(f *fixture) {
			f.Registries["discovery"] = RegistryState{Prefix: "services", Leaving: true}
			f.add("a", appsv1alpha1.StateNormal).registered("discovery")
		}, nil},
		{"it does not hold a Pod that leaves", func(f *fixture) {
			f.Registrations[0].Spec.Registries = []string{"discovery", "nowhere"}
			f.add("a", appsv1alpha1.StatePreparingDelete).finalizers(ours).
				drained(GatePreDelete, 10*time.Second, map[string]time.Duration{"discovery": 6 * time.Second})
		}, []string{"patch a: unready-blocker-delete=false -" + ours + " -drain registered=False"}},
		{"one that was deleted with entries in it does", func(f *fixture) {
			f.registry("backup")
			f.Registrations[0].Spec.Registries = []string{"discovery", "backup"}
			f.Registrations[0].Status.Targets = append(f.Registrations[0].Status.Targets, target("backup"))
			delete(f.Registries, "backup")
			f.add("a", appsv1alpha1.StateNormal).registered("discovery").terminating(time.Second)
		}, []string{"remove discovery a", "patch a: registered=False(RegistryUnavailable)",
			"wait a deletion backup RegistryUnavailable", "wait a deletion discovery StillListed", "again in 59s"}},
		{"a registry that is not for this namespace", func(f *fixture) {
			f.Registries["discovery"] = RegistryState{Prefix: "services", Denied: true}
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").registered("discovery")
		}, []string{"remove discovery a",
			"patch a: registered=False(RegistryNotAllowed)", "wait a created discovery RegistryNotAllowed"}},
		{"somebody else has the id", func(f *fixture) {
			b := f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").finalizers(ours)
			theirs := b.entry("nginx")
			theirs.Owner = registry.Owner{Cluster: "elsewhere", PodUID: "x"}
			f.seed("discovery", theirs)
		}, []string{"patch a: registered=False(ForeignEntry)", "wait a created discovery ForeignEntry"}},
		{"a change that was refused says why", func(f *fixture) {
			b := f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").finalizers(ours)
			f.Failed = map[Target]map[string]error{target("discovery"): {
				EntryID(b.pod): registry.Permanent(cmpErr("the address is not allowed")),
			}}
		}, []string{"put discovery a",
			"patch a: registered=False(RegistryRefuses)", "wait a created discovery RegistryRefuses"}},
		{"a deregistration that was refused holds the hook", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery")
			f.Failed = map[Target]map[string]error{target("discovery"): {"": registry.Permanent(cmpErr("read-only"))}}
		}, []string{"remove discovery a", "patch a: drain(inPlaceUpdate 0s: ) registered=True(RegistryRefuses)",
			"wait a inPlaceUpdate discovery RegistryRefuses", "again in 1m0s"}},
	})
}

type cmpErr string

func (e cmpErr) Error() string { return string(e) }

func TestDraining(t *testing.T) {
	run(t, []planCase{
		{"PreparingUpdate deregisters", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered("discovery")
		}, []string{"remove discovery a", "patch a: drain(inPlaceUpdate 0s: )",
			"wait a inPlaceUpdate discovery StillListed", "again in 1m0s"}},
		{"what is gone is noted once, with the time", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).registered()
		}, []string{"patch a: drain(inPlaceUpdate 0s: discovery 0s) registered=False",
			"wait a inPlaceUpdate discovery Propagation", "again in 5s"}},
		{"a Pod that was deselected a moment ago is not gone since its condition became False", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"patch a: drain(inPlaceUpdate 0s: discovery 0s)", "wait a inPlaceUpdate discovery Propagation", "again in 5s"}},
		{"in mid-propagation nothing is written", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).
				drained(GateInPlaceUpdate, 4*time.Second, map[string]time.Duration{"discovery": 3 * time.Second}).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"wait a inPlaceUpdate discovery Propagation", "again in 2s"}},
		{"after propagation the hook is released", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).
				drained(GateInPlaceUpdate, 10*time.Second, map[string]time.Duration{"discovery": 5 * time.Second}).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"patch a: unready-blocker-inplace=false -drain"}},
		{"propagation counts from the last registry", func(f *fixture) {
			f.registry("backup")
			f.Registrations[0].Spec.Registries = []string{"discovery", "backup"}
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).
				drained(GateInPlaceUpdate, 10*time.Second, map[string]time.Duration{"discovery": 9 * time.Second})
		}, []string{"patch a: drain(inPlaceUpdate 10s: backup 0s, discovery 9s) registered=False(Propagation)",
			"wait a inPlaceUpdate backup Propagation", "again in 5s"}},
		{"a registry that cannot be listed releases nothing", func(f *fixture) {
			f.down("discovery")
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).
				drained(GateInPlaceUpdate, 20*time.Second, map[string]time.Duration{"discovery": 10 * time.Second})
		}, []string{"patch a: registered=Unknown(RegistryUnavailable)",
			"wait a inPlaceUpdate discovery RegistryUnavailable", "again in 40s"}},
		{"an entry that came back is removed, and the wait starts over", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).in("discovery").
				drained(GateInPlaceUpdate, 20*time.Second, map[string]time.Duration{"discovery": 10 * time.Second})
		}, []string{"remove discovery a", "patch a: drain(inPlaceUpdate 20s: ) registered=Unknown(StillListed)",
			"wait a inPlaceUpdate discovery StillListed", "again in 40s"}},
	})
}

func TestDrainsEnd(t *testing.T) {
	run(t, []planCase{
		{"what was never registered needs no wait", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate)
		}, []string{"patch a: unready-blocker-inplace=false"}},
		{"a record of another gate does not count", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingDelete).finalizers(ours).
				drained(GateInPlaceUpdate, 20*time.Second, map[string]time.Duration{"discovery": 10 * time.Second}).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"patch a: drain(preDelete 0s: discovery 0s)", "wait a preDelete discovery Propagation", "again in 5s"}},
		{"a record that cannot be read starts over", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse).
				pod.Annotations = map[string]string{usherv1alpha1.AnnotationDrain: "{"}
		}, []string{"patch a: drain(inPlaceUpdate 0s: discovery 0s)", "wait a inPlaceUpdate discovery Propagation", "again in 5s"}},
		{"an update that was rolled back joins again, without the record", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).finalizers(ours).
				drained(GateInPlaceUpdate, 3*time.Second, map[string]time.Duration{"discovery": 3 * time.Second}).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"protect a: in(nginx) -drain", "wait a joining discovery NotListedYet"}},
		{"a delete that was cancelled has to pass preNormal", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingNormal).
				drained(GatePreDelete, 3*time.Second, map[string]time.Duration{"discovery": 3 * time.Second})
		}, []string{"protect a: +" + ours + " in(nginx) -drain", "wait a preNormal discovery NotListedYet"}},
		{"Updating is left alone", func(f *fixture) {
			f.add("a", appsv1alpha1.StateUpdating).label(keyInPlace, "false").finalizers(ours).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, nil},
		{"preDelete lets the Pod go in one patch", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingDelete).finalizers(ours).
				drained(GatePreDelete, 6*time.Second, map[string]time.Duration{"discovery": 5 * time.Second}).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, []string{"patch a: unready-blocker-delete=false -" + ours + " -drain"}},
		{"a hook that was released is not released again", func(f *fixture) {
			f.add("a", appsv1alpha1.StatePreparingUpdate).label(keyInPlace, "false").finalizers(ours).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, nil},
	})
}

func TestHookValues(t *testing.T) {
	drained := func(f *fixture, hook *appsv1alpha1.LifecycleHook) *podBuilder {
		f.lifecycle().InPlaceUpdate = hook
		return f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).
			drained(GateInPlaceUpdate, 6*time.Second, map[string]time.Duration{"discovery": 5 * time.Second}).
			condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
	}
	label := func(value string) *appsv1alpha1.LifecycleHook {
		return &appsv1alpha1.LifecycleHook{LabelsHandler: map[string]string{keyInPlace: value}}
	}
	finalizer := &appsv1alpha1.LifecycleHook{FinalizersHandler: []string{keyInPlace}}
	run(t, []planCase{
		{"true becomes false", func(f *fixture) { drained(f, label("true")) },
			[]string{"patch a: unready-blocker-inplace=false -drain"}},
		{"false becomes true", func(f *fixture) { drained(f, label("false")).label(keyInPlace, "false") },
			[]string{"patch a: unready-blocker-inplace=true -drain"}},
		{"any other value is removed", func(f *fixture) { drained(f, label("held")).label(keyInPlace, "held") },
			[]string{"patch a: -unready-blocker-inplace -drain"}},
		{"a finalizer is removed", func(f *fixture) { drained(f, finalizer).finalizers(keyInPlace) },
			[]string{"patch a: -" + keyInPlace + " -drain"}},
		{"a finalizer that is not there holds nothing", func(f *fixture) { drained(f, finalizer) }, nil},
		{"a label that is restored after the update", func(f *fixture) {
			f.lifecycle().InPlaceUpdate = label("held")
			f.add("a", appsv1alpha1.StateUpdated).unlabel(keyInPlace).registered("discovery")
		}, []string{"patch a: unready-blocker-inplace=held"}},
		{"a finalizer that is restored after the update", func(f *fixture) {
			f.lifecycle().InPlaceUpdate = finalizer
			f.add("a", appsv1alpha1.StateUpdated).registered("discovery")
		}, []string{"patch a: +" + keyInPlace}},
		{"a hook that the CloneSet has dropped is nobody's", func(f *fixture) {
			f.lifecycle().InPlaceUpdate = nil
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
		}, nil},
	})
}

func TestDeadline(t *testing.T) {
	late := func(f *fixture) *podBuilder {
		f.down("discovery")
		return f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).
			drained(GateInPlaceUpdate, time.Minute, nil)
	}
	proceed := func(f *fixture) { f.Registrations[0].Spec.Drain.OnDeadline = usherv1alpha1.DeadlineProceed }
	run(t, []planCase{
		{"Block goes on waiting and says so", func(f *fixture) { late(f) },
			[]string{"patch a: registered=Unknown(RegistryUnavailable)",
				"wait a inPlaceUpdate discovery RegistryUnavailable overdue"}},
		{"Proceed lets go", func(f *fixture) { proceed(f); late(f) },
			[]string{"patch a: unready-blocker-inplace=false -drain forced(discovery)"}},
		{"an earlier drain for the same gate has another deadline", func(f *fixture) {
			proceed(f)
			late(f).pod.Annotations[appsv1alpha1.AnnotationLifecycleTimestamp] = epoch.Format(time.RFC3339)
		}, []string{"patch a: drain(inPlaceUpdate 0s: ) registered=Unknown(RegistryUnavailable)",
			"wait a inPlaceUpdate discovery RegistryUnavailable", "again in 1m0s"}},
		{"Proceed does not before the deadline", func(f *fixture) {
			proceed(f)
			late(f).drained(GateInPlaceUpdate, time.Minute-time.Second, nil)
		}, []string{"patch a: registered=Unknown(RegistryUnavailable)",
			"wait a inPlaceUpdate discovery RegistryUnavailable", "again in 1s"}},
		{"Block holds a terminating Pod", func(f *fixture) {
			f.down("discovery")
			f.add("a", appsv1alpha1.StateNormal).registered().terminating(time.Minute)
		}, []string{"patch a: registered=True(RegistryUnavailable)",
			"wait a deletion discovery RegistryUnavailable overdue"}},
		{"Proceed lets a terminating Pod go", func(f *fixture) {
			proceed(f)
			f.down("discovery")
			f.add("a", appsv1alpha1.StateNormal).registered().terminating(time.Minute)
		}, []string{"patch a: -" + ours + " forced(discovery)"}},
	})
}

func TestDeletion(t *testing.T) {
	run(t, []planCase{
		{"a deleted Pod is deregistered at once", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).registered("discovery").terminating(0)
		}, []string{"remove discovery a", "wait a deletion discovery StillListed", "again in 1m0s"}},
		{"and let go when it is read back", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).registered().terminating(0)
		}, []string{"patch a: -" + ours}},
		{"with the hooks' own finalizers", func(f *fixture) {
			f.Registrations[0].Spec.Hooks.PreDelete = hookFin
			f.add("a", appsv1alpha1.StateNormal).registered().finalizers("example.com/theirs", hookFin).terminating(0)
		}, []string{"patch a: -" + ours + " -" + hookFin}},
		{"a terminating Pod gets no finalizer", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).terminating(0)
		}, nil},
		{"a Pod that left the selector leaves the registry", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).registered("discovery").label("app", "debug")
		}, []string{"remove discovery a", "wait a leaving discovery StillListed"}},
		{"and is let go", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).registered().label("app", "debug")
		}, []string{"patch a: -" + ours + " registered=False"}},
		{"a Registration that is deleted takes its entries along", func(f *fixture) {
			f.add("a", appsv1alpha1.StateNormal).registered("discovery")
			f.Registrations[0].DeletionTimestamp = &metav1.Time{Time: epoch}
		}, []string{"remove discovery a", "wait a leaving discovery StillListed"}},
		{"a place that the Registration has left is emptied", func(f *fixture) {
			f.registry("backup")
			f.Registrations[0].Spec.Registries = []string{"backup"}
			f.add("a", appsv1alpha1.StateNormal).registered("discovery", "backup")
		}, []string{"remove discovery a"}},
	})
}

func TestSeveralRegistrations(t *testing.T) {
	second := func(f *fixture) *usherv1alpha1.Registration {
		f.registry("mesh")
		return f.registration("second", "mesh")
	}
	run(t, []planCase{
		{"all have to confirm a hook that they share", func(f *fixture) {
			second(f)
			f.down("mesh")
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse).
				drained(GateInPlaceUpdate, 10*time.Second, map[string]time.Duration{"discovery": 9 * time.Second})
		}, []string{"patch a: registered=False(RegistryUnavailable)",
			"wait a inPlaceUpdate mesh RegistryUnavailable", "again in 50s"}},
		{"one that does not answer the hook does not hold it", func(f *fixture) {
			second(f).Spec.Hooks = usherv1alpha1.Hooks{}
			f.down("mesh")
			f.add("a", appsv1alpha1.StatePreparingUpdate).finalizers(ours).
				condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse).
				drained(GateInPlaceUpdate, 10*time.Second, map[string]time.Duration{"discovery": 9 * time.Second})
		}, []string{"patch a: unready-blocker-inplace=false -drain registered=False(RegistryUnavailable)",
			"wait a leaving mesh RegistryUnavailable"}},
		{"but the finalizer waits for it", func(f *fixture) {
			second(f).Spec.Hooks = usherv1alpha1.Hooks{}
			f.down("mesh")
			f.add("a", appsv1alpha1.StateNormal).registered().terminating(0)
		}, []string{"patch a: registered=False(RegistryUnavailable)",
			"wait a deletion mesh RegistryUnavailable", "again in 1m0s"}},
		{"two for the same place: the first by name has the entry", func(f *fixture) {
			f.registration("second", "discovery")
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").registered("discovery")
		}, []string{"patch a: registered=False(DuplicateRegistration)",
			"wait a created discovery DuplicateRegistration"}},
	})
}
