// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// newServices registers the Pods with app=nginx in the Service web of the story's
// namespace.
func (e *env) newServices() *kube {
	e.Helper()
	r := e.registryOf("services-", usherv1alpha1.RegistrySpec{EndpointSlice: &usherv1alpha1.EndpointSliceRegistry{}})
	e.register(func(spec *usherv1alpha1.RegistrationSpec) {
		spec.Registries, spec.Instance.Service, spec.Instance.Weight = []string{r.Name}, "web", 7
	})
	return &kube{api: e.Client, namespace: e.namespace}
}

// TestStoryEndpointSlice takes a Pod into and out of a Service of its namespace.
func TestStoryEndpointSlice(t *testing.T) {
	e := newEnv(t)
	set := e.cloneSet(lifecycleDemo(t))
	k := e.newServices()
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyCreated, "false")
	list := k.slices(t)
	if len(list) != 1 || len(list[0].Endpoints) != 1 || list[0].Endpoints[0].Addresses[0] != "10.0.0.1" ||
		list[0].Endpoints[0].TargetRef.Name != name {
		t.Errorf("the Service has the slices %+v", list)
	}
	e.condition(usherv1alpha1.ConditionReady, "True", "")
	k.unchanged(e, list[0].ResourceVersion)
	e.gate(name, appsv1alpha1.StatePreparingDelete, keyDelete, "false")
	if left := k.slices(t); len(left) != 0 {
		t.Errorf("a drained Pod is in %+v", left)
	}
	e.delete(name)
}

// unchanged checks for two seconds that the Service web has one slice of this version.
func (k *kube) unchanged(e *env, version string) {
	e.Helper()
	e.stays("the only slice", 2*time.Second, func() string {
		now := k.slices(e.T)
		return registrytest.Unless(len(now) == 1 && now[0].ResourceVersion == version, fmt.Sprintf("has changed: %+v", now))
	})
}

// managers waits until the Service web has slices of exactly these managers.
func (k *kube) managers(e *env, want ...string) {
	e.Helper()
	e.eventually("slices of "+fmt.Sprint(want), func() string {
		var have []string
		for _, s := range k.slices(e.T) {
			if len(s.Endpoints) > 0 {
				have = append(have, s.Labels[discoveryv1.LabelManagedBy])
			}
		}
		slices.Sort(have)
		return registrytest.Unless(slices.Equal(have, want), fmt.Sprintf("are those of %v", have))
	})
}

// bind assigns a Pod to a node: Kubernetes leaves Pods without a node out of slices.
func (e *env) bind(name string) {
	e.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}
	e.create(node)
	e.Cleanup(func() { _ = e.Delete(context.Background(), node) })
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node.Name}}
	e.must(e.SubResource("binding").Create(e.Context(), e.pod(name), binding))
}

// TestStoryServiceMoves takes over a Service from Kubernetes' own controllers, which
// run too: its Pod is listed all the time, and in the end only by Usher.
func TestStoryServiceMoves(t *testing.T) {
	const theirs, mirror = "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"
	e := newEnv(t)
	set := e.cloneSet(lifecycleDemo(t))
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "web"},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "nginx"},
			Ports: []corev1.ServicePort{{Port: 80}}},
	}
	e.create(service)
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.bind(name)
	e.kubelet(name, "10.0.0.1", true)
	k := &kube{api: e.Client, namespace: e.namespace}
	k.managers(e, theirs)
	e.newServices()
	e.hasLabel(name, keyCreated, "false")
	k.managers(e, theirs, "usher.dev")

	e.patch(service, map[string]any{"spec": map[string]any{"selector": nil}})
	k.managers(e, theirs, mirror, "usher.dev")
	e.must(e.DeleteAllOf(t.Context(), &discoveryv1.EndpointSlice{}, client.InNamespace(e.namespace),
		client.MatchingLabels{discoveryv1.LabelManagedBy: theirs}))
	e.remove(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "web"}}) //nolint:staticcheck // Kubernetes still makes them.
	k.managers(e, "usher.dev")
	k.unchanged(e, k.slices(t)[0].ResourceVersion)
	e.gate(name, appsv1alpha1.StatePreparingDelete, keyDelete, "false")
	k.managers(e)
}
