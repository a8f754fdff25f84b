// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usher "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/test/model"
)

// misreading is an operator whose caches show objects of one type differently.
func misreading[T client.Object](change func(T)) defects {
	return defects{misreads: func(object client.Object, cached bool) {
		if typed, ok := object.(T); ok && cached {
			change(typed)
		}
	}}
}

// withoutField drops a field of the metadata from patches.
func withoutField(name string) defects {
	return defects{miswrites: func(metadata map[string]any) { delete(metadata, name) }}
}

// withoutAnnotation drops an annotation from the operator's patches, unless it is set.
func withoutAnnotation(name string) defects {
	return defects{miswrites: func(metadata map[string]any) {
		annotations, _ := metadata["annotations"].(map[string]any)
		if value, ok := annotations[name]; ok && value != plan.DeletionCost {
			delete(annotations, name)
		}
	}}
}

// forgetful reads Registries from the API server without what earlier processes saw.
var forgetful = defects{misreads: func(object client.Object, cached bool) {
	if r, ok := object.(*usher.Registry); ok && !cached {
		r.Status = usher.RegistryStatus{}
	}
}}

// TestMutantsAreCaught breaks the operator in many ways. A simulation that lets
// one of them pass proves nothing about the real one.
func TestMutantsAreCaught(t *testing.T) {
	type registration = usher.Registration
	failOver, guarded := features{policy: usher.InPlaceUpdateFailOver}, features{guard: true, budget: 3}
	for name, mutant := range map[string]struct {
		defects  defects
		features features
		caught   []string
	}{
		"ignores the propagation": {defects: misreading(func(r *registration) { r.Spec.Drain.Propagation = &metav1.Duration{} }),
			caught: []string{"after it was last listed"}},
		"ignores that callers have to come back": {defects: misreading(func(r *registration) { r.Spec.Drain.AfterOutage = &metav1.Duration{} }),
			caught: []string{"after callers were back"}},
		"lets deletions go that are to wait": {features: features{blocks: true}, caught: []string{"while a registry lists it", "after callers were back"},
			defects: misreading(func(r *registration) { r.Spec.Drain.OnDeadline = "" })},
		"lets deletions go before their deadline": {caught: []string{"while a registry lists it", "after callers were back"},
			defects: misreading(func(r *registration) { r.Spec.Drain.Deadline = &metav1.Duration{Duration: deadline} })},
		"takes the last process's clock for its own": {defects: misreading(trustsClocks), features: features{clocks: true, blocks: true},
			caught: []string{"after it was last listed"}},
		"forgets outages when it restarts": {defects: forgetful, caught: []string{"after callers were back"}},
		"releases hooks of Pods that stay": {defects: misreading(func(r *registration) { r.Spec.OnInPlaceUpdate = usher.InPlaceUpdateStay }),
			caught: []string{"released while a registry lists it"}},
		"holds back where the registry cannot": {features: failOver, caught: []string{"released while a registry lists it"},
			defects: misreading(func(r *usher.Registry) { r.Spec.Consul = &usher.ConsulRegistry{CredentialsSecret: login()} })},
		"ignores the grace of silent nodes": {caught: []string{"only just fallen silent"},
			defects: misreading(func(r *registration) { r.Spec.NodeFailure = &usher.NodeFailure{Grace: &metav1.Duration{}} })},
		"takes all Pods for equal": {defects: misreading(func(r *registration) { r.Spec.Instance.WeightFrom = nil }),
			features: features{weights: true}, caught: []string{"with the weight"}},
		"believes that a Service lists nobody": {features: features{service: true}, caught: []string{"while its Service lists it", "stuck in"},
			defects: defects{misreads: func(object client.Object, _ bool) {
				if slice, ok := object.(*discoveryv1.EndpointSlice); ok {
					slice.Endpoints = nil
				}
			}}},
		"sees no readiness gates": {features: features{service: true}, caught: []string{"is to stay"},
			defects: misreading(func(pod *corev1.Pod) { pod.Spec.ReadinessGates = nil })},
		"ignores the propagation of a Service": {features: features{service: true}, caught: []string{"after its Service last listed it"},
			defects: misreading(func(r *registration) {
				r.Spec.Drain.Propagation, r.Spec.Registries = &metav1.Duration{}, []string{inServices}
			})},
		"forgets the finalizer":            {defects: withoutField("finalizers"), caught: []string{"could vanish", "stuck in"}},
		"ignores the version":              {defects: withoutField("resourceVersion"), caught: []string{"released", "finalizer", "could vanish"}},
		"forgets how far a drain has come": {defects: withoutField("annotations"), caught: []string{"stuck in"}},
		"asks only Registrations that match": {defects: misreading(asksThoseThatMatch), features: features{second: true},
			caught: []string{"while a registry lists it", "could vanish"}},
		"lets go whom it has asked to drain": {features: guarded, caught: []string{"gets SIGTERM"}, defects: defects{allows: func(pod *corev1.Pod) bool {
			return pod.Annotations[usher.AnnotationDeletionRequest] != ""
		}}},
		"lets go whom registries list no more": {features: guarded, caught: []string{"gets SIGTERM"}, defects: defects{allows: func(pod *corev1.Pod) bool {
			return model.Condition(pod, usher.ConditionRegistered).Status == corev1.ConditionFalse
		}}},
		"labels Pods later than it registers them": {features: guarded, caught: []string{"gets SIGTERM"},
			defects: defects{miswrites: func(metadata map[string]any) {
				if labels, ok := metadata["labels"].(map[string]any); ok && metadata["finalizers"] != nil {
					delete(labels, usher.LabelGuarded)
				}
			}}},
		"does not miss the label": {features: guarded, caught: []string{"without the guard's label"},
			defects: misreading(func(pod *corev1.Pod) {
				pod.Labels = maps.Clone(pod.Labels)
				metav1.SetMetaDataLabel(&pod.ObjectMeta, usher.LabelGuarded, "true")
			})},
		"waits for ever for who asked": {features: guarded, caught: []string{"deletion that never came"},
			defects: misreading(func(r *registration) { r.Spec.Drain.RequestTimeout = &metav1.Duration{Duration: time.Hour} })},
		"keeps the deletion cost": {features: guarded, caught: []string{"its deletion cost"}, defects: withoutAnnotation(corev1.PodDeletionCost)},
		"takes every service for shared": {features: features{tenants: true}, caught: []string{"is of namespace", "which is another's"},
			defects: misreading(func(r *usher.Registry) { r.Spec.Services = []usher.ServiceRule{{Names: []string{"*"}, Shared: true}} })},
		"reveals secrets": {caught: []string{"reveals the secret"},
			defects: misreading(func(r *usher.Registry) {
				r.Spec = usher.RegistrySpec{Webhook: &usher.WebhookRegistry{}, Services: r.Spec.Services}
			})},
		"never makes progress": {caught: []string{"lists", "stuck in", "never let go", "its hooks are"},
			defects: misreading(func(r *usher.Registry) { r.Spec.RateLimit = &usher.RateLimit{ChangesPerSecond: 1, Burst: new(int32)} })},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(30) {
				s := simulate(t, seed, mutant.features, mutant.defects)
				s.run(200)
				for _, rule := range mutant.caught {
					if strings.Contains(s.broken, rule) {
						t.Logf("seed %d: %s", seed, s.broken)
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

// asksThoseThatMatch makes a Pod name only the Registrations that select it now.
func asksThoseThatMatch(pod *corev1.Pod) {
	if _, named := pod.Annotations[usher.AnnotationRegistrations]; !named {
		return
	}
	var names []string
	if pod.Labels["app"] == "nginx" {
		names = append(names, "nginx")
	}
	if pod.Labels["track"] == edge {
		names = append(names, edge)
	}
	pod.Annotations[usher.AnnotationRegistrations] = strings.Join(names, ",")
}

// takesDrainsForOne makes an old record look as if it were of the present drain.
func takesDrainsForOne(pod *corev1.Pod) {
	misreadsRecord(pod, func(record map[string]any) { record["entered"] = pod.Annotations[apps.AnnotationLifecycleTimestamp] })
}

// trustsClocks makes a drain record look as if it were by the process's own clock.
func trustsClocks(pod *corev1.Pod) {
	misreadsRecord(pod, func(record map[string]any) { delete(record, "at") })
}

func misreadsRecord(pod *corev1.Pod, change func(map[string]any)) {
	var record map[string]any
	if err := json.Unmarshal([]byte(pod.Annotations[usher.AnnotationDrain]), &record); err != nil {
		return // there is none
	}
	change(record)
	text, err := json.Marshal(record)
	if err != nil {
		panic(err) // what was JSON always encodes
	}
	pod.Annotations[usher.AnnotationDrain] = string(text)
}
