// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// believing is an operator that takes a Registration for another one.
func believing(change func(*usherv1alpha1.Registration)) defects {
	return defects{believes: func(r *usherv1alpha1.Registration, _ []usherv1alpha1.Registry) { change(r) }}
}

// TestMutantsAreCaught breaks the operator in many ways. A simulation that lets
// one of them pass proves nothing about the real one.
func TestMutantsAreCaught(t *testing.T) {
	for name, mutant := range map[string]struct {
		defects  defects
		features features
		caught   []string
	}{
		"ignores the propagation": {defects: believing(func(r *usherv1alpha1.Registration) {
			r.Spec.Drain.Propagation = &metav1.Duration{}
		}), caught: []string{"after it was last listed"}},
		"ignores that callers have to come back": {defects: believing(func(r *usherv1alpha1.Registration) {
			r.Spec.Drain.AfterOutage = &metav1.Duration{}
		}), caught: []string{"after callers were back"}},
		"forgets outages when it restarts": {defects: defects{forgets: true}, caught: []string{"after callers were back"}},
		"releases hooks of Pods that stay": {defects: believing(func(r *usherv1alpha1.Registration) {
			r.Spec.OnInPlaceUpdate = usherv1alpha1.InPlaceUpdateStay
		}), caught: []string{"released while a registry lists it"}},
		"holds back where the registry cannot": {
			defects: defects{believes: func(_ *usherv1alpha1.Registration, registries []usherv1alpha1.Registry) {
				for i := range registries {
					registries[i].Spec.Consul = &usherv1alpha1.ConsulRegistry{CredentialsSecret: login()}
				}
			}},
			features: features{policy: usherv1alpha1.InPlaceUpdateFailOver},
			caught:   []string{"released while a registry lists it"},
		},
		"ignores the grace of silent nodes": {defects: believing(func(r *usherv1alpha1.Registration) {
			r.Spec.NodeFailure = &usherv1alpha1.NodeFailure{Grace: &metav1.Duration{}}
		}), caught: []string{"only just fallen silent"}},
		"takes all Pods for equal": {
			defects:  believing(func(r *usherv1alpha1.Registration) { r.Spec.Instance.WeightFrom = nil }),
			features: features{weights: true}, caught: []string{"with the weight"},
		},
		"forgets the finalizer": {defects: defects{writes: func(metadata map[string]any) {
			delete(metadata, "finalizers")
		}}, caught: []string{"could vanish", "stuck in"}},
		"writes whatever the version": {defects: defects{writes: func(metadata map[string]any) {
			delete(metadata, "resourceVersion")
		}}, caught: []string{"released", "finalizer", "could vanish"}},
		"forgets how far a drain has come": {defects: defects{writes: func(metadata map[string]any) {
			delete(metadata, "annotations")
		}}, caught: []string{"stuck in"}},
		"asks only those that match": {defects: defects{misreads: asksThoseThatMatch}, features: features{second: true},
			caught: []string{"while a registry lists it", "could vanish"}},
		"tells secrets": {defects: defects{believes: func(_ *usherv1alpha1.Registration, registries []usherv1alpha1.Registry) {
			for i := range registries {
				registries[i].Spec = usherv1alpha1.RegistrySpec{Webhook: &usherv1alpha1.WebhookRegistry{}}
			}
		}}, caught: []string{"tells the secret"}},
		"never gets on": {defects: defects{believes: func(_ *usherv1alpha1.Registration, registries []usherv1alpha1.Registry) {
			for i := range registries {
				registries[i].Spec.RateLimit = &usherv1alpha1.RateLimit{ChangesPerSecond: 1, Burst: new(int32)}
			}
		}}, caught: []string{"lists", "stuck in", "never let go", "its hooks are"}},
	} {
		t.Run(name, func(t *testing.T) {
			mutant.defects.expected = true
			for seed := range uint64(20) {
				s := simulate(t, seed, mutant.features, mutant.defects)
				s.run(200)
				for _, rule := range mutant.caught {
					if strings.Contains(s.broken, rule) {
						return
					}
				}
				if s.broken != "" {
					t.Fatalf("seed %d: another rule catches it: %s", seed, s.broken)
				}
			}
			t.Error("it is not caught")
		})
	}
}

// TestAllNodesFallSilent lets all nodes fall silent together: half of the Pods
// stay in each registry, and come back when the nodes do. An operator without the
// floor is caught.
func TestAllNodesFallSilent(t *testing.T) {
	all := int32(100)
	careless := believing(func(r *usherv1alpha1.Registration) {
		r.Spec.NodeFailure = &usherv1alpha1.NodeFailure{MaxPercent: &all}
	})
	careless.expected = true
	for _, wrong := range []defects{{}, careless} {
		s := simulate(t, 1, features{}, wrong)
		s.populate(4)
		s.passes(2)
		silence := func() {
			for _, pod := range s.pods() {
				s.silenceOne(&pod)
			}
		}
		silence()
		s.passes(1)
		s.lists(4, 4)
		s.clock.SetTime(s.clock.Now().Add(plan.DefaultNodeGrace))
		s.passes(2)
		if wrong.expected {
			if !strings.Contains(s.broken, "because their nodes are silent") {
				t.Errorf("an operator without the floor is not caught: %q", s.broken)
			}
			continue
		}
		s.lists(2, 2)
		silence()
		s.passes(2)
		s.lists(4, 4)
	}
}
