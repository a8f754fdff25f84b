// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// Keys that are named after the Registration nginx, and some that only look so.
const (
	ownOnline  = "nginx.usher.dev/online"
	ownDrained = "nginx.usher.dev/drained"
	ownCreated = "nginx.usher.dev/created"
	othersKey  = "nginx2.usher.dev/drained"
)

// unnamed makes the Registration name no hook, and the CloneSet use keys that
// are named after it.
func unnamed(f *fixture) {
	f.Registrations[0].Spec.Hooks = usherv1alpha1.Hooks{}
	*f.lifecycle() = appsv1alpha1.Lifecycle{
		PreNormal:     &appsv1alpha1.LifecycleHook{LabelsHandler: map[string]string{ownOnline: "true"}},
		InPlaceUpdate: &appsv1alpha1.LifecycleHook{LabelsHandler: map[string]string{ownDrained: "true", othersKey: "true"}},
		PreDelete:     &appsv1alpha1.LifecycleHook{LabelsHandler: map[string]string{ownDrained: "true"}},
	}
}

func TestKeysWithTheNameOfTheRegistration(t *testing.T) {
	gone := func(b *podBuilder, gate Gate) {
		b.finalizers(ours).condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse).
			drained(gate, 10*time.Second, map[string]time.Duration{"discovery": 6 * time.Second})
	}
	run(t, []planCase{
		{"preNormal", func(f *fixture) {
			unnamed(f)
			f.add("a", appsv1alpha1.StatePreparingNormal).registered("discovery")
		}, []string{"patch a: " + ownOnline + "=true"}},
		{"nothing joins at a preNormal hook of others", func(f *fixture) {
			unnamed(f)
			f.lifecycle().PreNormal.LabelsHandler = map[string]string{othersKey: "true"}
			f.add("a", appsv1alpha1.StatePreparingNormal)
		}, nil},
		{"inPlaceUpdate, and not the key of another", func(f *fixture) {
			unnamed(f)
			gone(f.add("a", appsv1alpha1.StatePreparingUpdate).label(ownDrained, "true").label(othersKey, "true"), GateInPlaceUpdate)
		}, []string{"patch a: " + ownDrained + "=false -drain"}},
		{"an updated Pod is hooked again", func(f *fixture) {
			unnamed(f)
			f.add("a", appsv1alpha1.StateUpdated).label(ownDrained, "false").registered("discovery")
		}, []string{"patch a: " + ownDrained + "=true"}},
		{"preDelete", func(f *fixture) {
			unnamed(f)
			gone(f.add("a", appsv1alpha1.StatePreparingDelete).label(ownDrained, "true"), GatePreDelete)
		}, []string{"patch a: " + ownDrained + "=false -" + ours + " -drain"}},
		{"created", func(f *fixture) {
			unnamed(f)
			f.add("a", appsv1alpha1.StateNormal).label(ownCreated, "true").registered("discovery")
		}, []string{"patch a: " + ownCreated + "=false"}},
		{"created is left alone where another gate uses it", func(f *fixture) {
			unnamed(f)
			f.lifecycle().PreDelete.LabelsHandler[ownCreated] = "true"
			f.add("a", appsv1alpha1.StateNormal).label(ownCreated, "true").registered("discovery")
		}, nil},
		{"several keys at one gate", func(f *fixture) {
			unnamed(f)
			f.lifecycle().PreDelete.FinalizersHandler = []string{ownOnline}
			gone(f.add("a", appsv1alpha1.StatePreparingDelete).label(ownDrained, "true").finalizers(ownOnline), GatePreDelete)
		}, []string{"patch a: " + ownDrained + "=false -" + ownOnline + " -" + ours + " -drain"}},
		{"a key that is named wins", func(f *fixture) {
			unnamed(f)
			f.Registrations[0].Spec.Hooks.InPlaceUpdate = othersKey
			gone(f.add("a", appsv1alpha1.StatePreparingUpdate).label(ownDrained, "true").label(othersKey, "true"), GateInPlaceUpdate)
		}, []string{"patch a: " + othersKey + "=false -drain"}},
		{"a finalizer does not hold a Pod that others delete", func(f *fixture) {
			unnamed(f)
			f.add("a", appsv1alpha1.StateNormal).registered().finalizers(othersKey, ownDrained).terminating(0)
		}, []string{"patch a: -" + ours + " -" + ownDrained}},
		{"one that others name does", func(f *fixture) {
			f.Registrations[0].Spec.Hooks = usherv1alpha1.Hooks{PreNormal: keyPreNormal, InPlaceUpdate: keyInPlace, PreDelete: keyDelete}
			f.add("a", appsv1alpha1.StateNormal).registered().finalizers(ownDrained).terminating(0)
		}, []string{"patch a: -" + ours}},
	})
}
