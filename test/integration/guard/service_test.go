// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// beginService is a story whose Registration is one of Service web.
func beginService(t *testing.T) *story {
	t.Helper()
	s := begin(t, `spec: {registries: [service], instance: {service: web, port: null}}`)
	s.wantGates("enabled")
	s.Until("the policy knows of the namespace and the Registration", func() string {
		probe := s.Object("{apiVersion: v1, kind: Pod, metadata: {name: probe, labels: {app: web}}, "+podSpec+"}", unlessAdded(podGate))
		s.Must(s.Create(t.Context(), probe, client.DryRunAll))
		gates, _, err := unstructured.NestedSlice(probe.Object, "spec", "readinessGates")
		s.Must(err)
		return registrytest.Unless(len(gates) > 0, "it adds no gate")
	})
	return s
}

// registration is the key of the story's Registration.
func (s *story) registration() *usherv1alpha1.Registration {
	return &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "web"}}
}

// wantGates asks the API server for the readiness gate on new Pods, or no longer.
func (s *story) wantGates(how string) {
	s.Helper()
	s.Change(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}, `metadata: {labels: {usher.dev/readiness-gate: %s}}`, how)
}

// service creates Service web.
func (s *story) service() {
	s.Helper()
	s.Make(s.Object(`{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80}]}}`))
}

// podGate is a patch of a Pod, readinessGate of a workload.
const (
	podGate       = `spec: {readinessGates: [{conditionType: usher.dev/registered}]}`
	readinessGate = `spec: {template: {` + podGate + `}}`
)

// unlessAdded is a patch that makes a gate, unless the API server adds it.
func unlessAdded(patch string) string {
	if policies {
		return "{}"
	}
	return patch
}

// served waits until there are just so many Pods, all with the gate, and the Service lists
// them.
func (s *story) served(n int) {
	s.Helper()
	s.listed(n, func() []types.UID { return callers.inServices(s.Namespace) })
	for _, pod := range s.Pods() {
		if !slices.Contains(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: usherv1alpha1.ConditionRegistered}) {
			s.Fatalf("Pod %s has the gates %v", pod.Name, pod.Spec.ReadinessGates)
		}
	}
}

// TestServiceDeployment: a Deployment with a Service and no preStop sleep is rolled out, scaled
// in and deleted. No Pod is deleted while callers may use it.
func TestServiceDeployment(t *testing.T) {
	s := beginService(t)
	s.service()
	d := s.workload("Deployment", 6, unlessAdded(readinessGate))
	s.served(6)
	s.rollOut(d)
	s.served(6)
	s.Change(d, `spec: {replicas: 3}`)
	s.served(3)
	s.Must(s.Delete(t.Context(), d, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	s.served(0)
}

// TestServiceStatefulSet: a StatefulSet replaces its Pods in order. Its controller does nothing
// while a Pod is not Ready, so it waits for the drain in its request.
func TestServiceStatefulSet(t *testing.T) {
	s := beginService(t)
	s.service()
	set := s.workload("StatefulSet", 2, unlessAdded(readinessGate), `spec: {serviceName: web}`)
	s.served(2)
	s.rollOut(set)
	s.served(2)
	s.Change(set, `spec: {replicas: 1}`)
	s.served(1)
}

// TestServiceTakenBack: a Pod whose eviction does not come back is in the Service again.
func TestServiceTakenBack(t *testing.T) {
	s := beginService(t)
	s.service()
	pod := s.bare("web", unlessAdded(podGate))
	s.served(1)
	if err := s.evict(pod); err == nil {
		t.Fatal("evicted without a drain")
	}
	s.Until("it is drained", func() string {
		if p := s.Pod("web"); len(p.Finalizers) > 0 || len(callers.inServices(s.Namespace)) > 0 {
			return "it is held, or listed"
		}
		return ""
	})
	s.age("web")
	s.served(1)
	s.Must(s.Delete(t.Context(), s.Pod("web")))
	s.served(0)
}

// TestServiceMissing: the Registration says what is wrong with its Service; Pods do not wait
// for it, and drains do.
func TestServiceMissing(t *testing.T) {
	s := beginService(t)
	pod := s.bare("web", unlessAdded(podGate))
	s.Condition(s.registration(), "Ready", "", "there is no Service web")
	s.Condition(pod, string(corev1.PodReady), metav1.ConditionTrue)
	if err := s.evict(pod); err == nil {
		t.Fatal("evicted without a drain")
	}
	s.Condition(s.registration(), "Waiting", "", "there is no Service web")
	s.service()
	s.Must(s.Delete(t.Context(), pod))
	s.served(0)
}

// TestServiceWithoutGate: a Pod without the gate keeps working, says what to add, and its
// deletion waits for nobody. When the Registration goes, those with the gate keep working too.
func TestServiceWithoutGate(t *testing.T) {
	s := beginService(t)
	s.service()
	s.bare("with", unlessAdded(podGate))
	s.served(1)
	s.wantGates("disabled")
	without := &corev1.Pod{}
	s.Until("a Pod without the gate", func() string {
		without = s.bare("without")
		if len(without.Spec.ReadinessGates) == 0 {
			return ""
		}
		s.Must(client.IgnoreNotFound(s.Delete(t.Context(), without, client.GracePeriodSeconds(0))))
		s.Gone(without)
		return "the policy's binding still has the namespace"
	})
	s.Condition(s.registration(), "Waiting", "", "add spec.readinessGates: [{conditionType: usher.dev/registered}] to its Pod template")
	s.Until("both are listed", func() string {
		return registrytest.Unless(len(callers.inServices(s.Namespace)) == 2, "not yet")
	})
	gone := s.registration()
	s.Must(s.Delete(t.Context(), gone))
	s.Gone(gone)
	if held := s.Pod("with").Finalizers; len(held) > 0 {
		t.Errorf("the Pod is held by %v", held)
	}
	if ready := callers.inServices(s.Namespace); len(ready) != 2 {
		t.Errorf("%d of 2 Pods are in the Service", len(ready))
	}
	s.Must(s.Delete(t.Context(), without))
	callers.forget(s.Namespace)
}

// TestServiceCloneSet: Pods are updated in place, and a set is scaled in, out of the Service.
func TestServiceCloneSet(t *testing.T) {
	s := beginService(t)
	s.service()
	set := s.Object(cloneSet, unlessAdded(readinessGate))
	s.Make(set)
	s.served(3)
	before := callers.inServices(s.Namespace)
	s.Change(set, `spec: {template: {spec: {containers: [{name: web, image: "example.test/web:v2"}]}}}`)
	s.Until("the update ends", func() string {
		for _, pod := range s.Pods() {
			if pod.Spec.Containers[0].Image != "example.test/web:v2" || pod.Labels[appsv1alpha1.LabelLifecycleState] != "Normal" {
				return pod.Name + " is not updated"
			}
		}
		return ""
	})
	s.served(3)
	for _, uid := range callers.inServices(s.Namespace) {
		if !slices.Contains(before, uid) {
			t.Error("a Pod was created anew")
		}
	}
	s.Change(set, `spec: {replicas: 1}`)
	s.served(1)
}
