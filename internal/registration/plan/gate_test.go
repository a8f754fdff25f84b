// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// inService makes Registration nginx one of a Service, and of the other registries.
func (f *fixture) inService(others ...string) {
	f.registry("service")
	f.Registries["service"] = RegistryState{Prefix: "services", Gated: true, HoldsBack: true}
	r := f.Registrations[0]
	r.Spec.Registries = append([]string{"service"}, others...)
	r.Status.Targets = nil
	for _, name := range r.Spec.Registries {
		r.Status.Targets = append(r.Status.Targets, target(name))
	}
}

// gate gives the Pod the readiness gate, on, off or new, and what the kubelet answers.
func (b *podBuilder) gate(turn string) {
	b.pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: usherv1alpha1.ConditionRegistered}}
	if turn == "on" {
		b.condition(usherv1alpha1.ConditionRegistered, corev1.ConditionTrue)
		return
	}
	if turn == "off" {
		b.condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse)
	}
	condition(b.condition(corev1.PodReady, corev1.ConditionFalse).pod, corev1.PodReady).Reason = reasonGates
}

// endpoint adds what the Service lists for the Pod.
func (b *podBuilder) endpoint(ready bool) {
	e := registry.Entry{
		ID:      fmt.Sprint("web-x7k2p.", len(b.f.Listings[target("service")].Entries)),
		Address: b.pod.Status.PodIP, NoMetadata: true,
		Owner: registry.Owner{Namespace: namespace, Pod: b.pod.Name, PodUID: string(b.pod.UID)},
	}
	if ready {
		e.Weight = 1
	}
	b.f.seed("service", e)
}

// TestServiceIsLeft: a Registration goes when no gate keeps a Pod out of its Service.
func TestServiceIsLeft(t *testing.T) {
	for turn, released := range map[string]bool{"on": true, "off": false} {
		f := newFixture()
		f.inService()
		f.Registrations[0].DeletionTimestamp = &metav1.Time{Time: epoch}
		f.add("a", "").gate(turn)
		if o := Make(f.Snapshot).Outcomes[0]; o.Released != released {
			t.Errorf("the gate is %s, and the Registration is released: %t", turn, o.Released)
		}
	}
}

// TestServiceMatters: the kubelet's answer to the gate makes a pass look again.
func TestServiceMatters(t *testing.T) {
	f := newFixture()
	b := f.add("a", "")
	b.gate("on")
	before := b.condition(usherv1alpha1.ConditionRegistered, corev1.ConditionFalse).pod.DeepCopy()
	if b.gate("off"); !Matters(before, b.pod) {
		t.Error("the kubelet has answered, and nobody looks")
	}
}

// TestServiceStages: each wait names whom the Pod waits for.
func TestServiceStages(t *testing.T) {
	for says, given := range map[string]func(b *podBuilder){
		"its readiness gate usher.dev/registered is True yet":                    func(b *podBuilder) { b.gate("on") },
		"its kubelet has to answer the readiness gate: Ready is True yet":        func(b *podBuilder) { b.gate("off"); b.ready(true) },
		"Service nginx still lists it as ready":                                  func(b *podBuilder) { b.gate("off"); b.endpoint(true) },
		"Service nginx does not list it as ready: if that stays so, compare the": func(b *podBuilder) { b.label(keyCreated, "true").gate("on") },
	} {
		f, state := newFixture(), appsv1alpha1.StatePreparingUpdate
		f.inService()
		if strings.Contains(says, "compare") {
			state = appsv1alpha1.StateNormal
		}
		b := f.add("a", state).finalizers(usherv1alpha1.Finalizer)
		given(b)
		if waits := Make(f.Snapshot).Waiting; len(waits) != 1 || !strings.HasPrefix(waits[0].Message, says) {
			t.Errorf("it waits for %v, want %q", waits, says)
		}
	}
}
