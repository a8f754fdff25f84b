// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

func within(after time.Duration, policy usherv1alpha1.DeadlinePolicy) *usherv1alpha1.HookDeadline {
	return &usherv1alpha1.HookDeadline{After: metav1.Duration{Duration: after}, OnDeadline: policy}
}

// since says when the Pod became ready, and entered its state.
func (b *podBuilder) since(ready, state time.Duration) *podBuilder {
	for i := range b.pod.Status.Conditions {
		b.pod.Status.Conditions[i].LastTransitionTime = metav1.NewTime(epoch.Add(-ready))
	}
	if b.pod.Annotations == nil {
		b.pod.Annotations = map[string]string{}
	}
	b.pod.Annotations[appsv1alpha1.AnnotationLifecycleTimestamp] = epoch.Add(-state).Format(time.RFC3339)
	return b
}

func TestJoiningDeadlines(t *testing.T) {
	const block, proceed = usherv1alpha1.DeadlineBlock, usherv1alpha1.DeadlineProceed
	joining := func(f *fixture, ready time.Duration) *podBuilder {
		f.down("discovery")
		return f.add("a", appsv1alpha1.StatePreparingNormal).finalizers(ours).since(ready, time.Hour)
	}
	deadlines := func(f *fixture) *usherv1alpha1.Deadlines { return &f.Registrations[0].Spec.Deadlines }
	run(t, []planCase{
		{"there is none by default", func(f *fixture) { joining(f, time.Hour) },
			[]string{"patch a: registered=Unknown(RegistryUnavailable)",
				"wait a preNormal discovery RegistryUnavailable"}},
		{"before it the Pod waits, and is looked at again", func(f *fixture) {
			deadlines(f).PreNormal = within(time.Minute, proceed)
			joining(f, 50*time.Second)
		}, []string{"patch a: registered=Unknown(RegistryUnavailable)",
			"wait a preNormal discovery RegistryUnavailable", "again in 10s"}},
		{"Proceed lets it into service", func(f *fixture) {
			deadlines(f).PreNormal = within(time.Minute, proceed)
			joining(f, time.Minute)
		}, []string{"patch a: traffic-online=true forced(discovery)"}},
		{"Block says that it is late", func(f *fixture) {
			deadlines(f).PreNormal = within(time.Minute, block)
			joining(f, time.Minute)
		}, []string{"patch a: registered=Unknown(RegistryUnavailable)",
			"wait a preNormal discovery RegistryUnavailable overdue"}},
		{"a Registry that is not there can be given up, too", func(f *fixture) {
			deadlines(f).PreNormal = within(time.Minute, proceed)
			delete(f.Registries, "discovery")
			f.Registrations[0].Status.Targets = nil
			f.add("a", appsv1alpha1.StatePreparingNormal).finalizers(ours).since(time.Hour, time.Hour)
		}, []string{"patch a: traffic-online=true registered=False forced(discovery)"}},
		{"a Pod that is not ready is never let into service", func(f *fixture) {
			deadlines(f).PreNormal = within(time.Minute, proceed)
			joining(f, time.Hour).ready(false).since(time.Hour, time.Hour)
		}, []string{"wait a preNormal PodNotReady"}},
		{"created has its own", func(f *fixture) {
			deadlines(f).Created = within(time.Minute, proceed)
			f.down("discovery")
			f.add("a", appsv1alpha1.StateNormal).label(keyCreated, "true").finalizers(ours).since(time.Hour, time.Minute)
		}, []string{"patch a: newly-create=false forced(discovery)"}},
		{"an updated Pod has that of inPlaceUpdate", func(f *fixture) {
			deadlines(f).InPlaceUpdate = within(time.Minute, proceed)
			f.down("discovery")
			f.add("a", appsv1alpha1.StateUpdated).label(keyInPlace, "false").finalizers(ours).since(time.Hour, time.Minute)
		}, []string{"patch a: unready-blocker-inplace=true forced(discovery)"}},
		{"but not that of drains", func(f *fixture) {
			f.Registrations[0].Spec.Drain.OnDeadline = proceed
			f.down("discovery")
			f.add("a", appsv1alpha1.StateUpdated).label(keyInPlace, "false").finalizers(ours).since(time.Hour, time.Hour)
		}, []string{"patch a: registered=Unknown(RegistryUnavailable)",
			"wait a updated discovery RegistryUnavailable"}},
		{"one of two is given up, the other waited for", func(f *fixture) {
			deadlines(f).PreNormal = within(time.Minute, proceed)
			f.registry("mesh")
			f.registration("second", "mesh")
			joining(f, time.Hour)
		}, []string{"put mesh a",
			"patch a: registered=False(NotListedYet)", "wait a preNormal mesh NotListedYet"}},
	})
}

func TestLeavingDeadlines(t *testing.T) {
	const block, proceed = usherv1alpha1.DeadlineBlock, usherv1alpha1.DeadlineProceed
	leaving := func(f *fixture, state appsv1alpha1.LifecycleState, gate Gate) {
		f.down("discovery")
		f.add("a", state).finalizers(ours).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse).
			drained(gate, 30*time.Second, nil)
	}
	deadlines := func(f *fixture) *usherv1alpha1.Deadlines { return &f.Registrations[0].Spec.Deadlines }
	run(t, []planCase{
		{"inPlaceUpdate before that of drains", func(f *fixture) {
			deadlines(f).InPlaceUpdate = within(30*time.Second, proceed)
			leaving(f, appsv1alpha1.StatePreparingUpdate, GateInPlaceUpdate)
		}, []string{"patch a: unready-blocker-inplace=false -drain forced(discovery)"}},
		{"preDelete blocks where drains proceed", func(f *fixture) {
			f.Registrations[0].Spec.Drain.OnDeadline = proceed
			deadlines(f).PreDelete = within(20*time.Second, block)
			leaving(f, appsv1alpha1.StatePreparingDelete, GatePreDelete)
		}, []string{"patch a: registered=False(RegistryUnavailable)",
			"wait a preDelete discovery RegistryUnavailable overdue"}},
		{"a Pod that others delete has that of preDelete", func(f *fixture) {
			deadlines(f).PreDelete = within(30*time.Second, proceed)
			f.down("discovery")
			f.add("a", appsv1alpha1.StateNormal).registered().terminating(30 * time.Second)
		}, []string{"patch a: -" + ours + " forced(discovery)"}},
		{"that of preDelete is none of an update's", func(f *fixture) {
			deadlines(f).PreDelete = within(10*time.Second, proceed)
			leaving(f, appsv1alpha1.StatePreparingUpdate, GateInPlaceUpdate)
		}, []string{"patch a: registered=False(RegistryUnavailable)",
			"wait a inPlaceUpdate discovery RegistryUnavailable", "again in 30s"}},
	})
}
