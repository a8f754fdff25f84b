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
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// newServices registers the Pods with app=nginx in a Service of the story's
// namespace.
func (e *env) newServices(service string) *kube {
	e.Helper()
	r := &usherv1alpha1.Registry{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "services-"},
		Spec: usherv1alpha1.RegistrySpec{
			EndpointSlice:  &usherv1alpha1.EndpointSliceRegistry{},
			RepairInterval: &metav1.Duration{Duration: time.Second},
		},
	}
	e.create(r)
	e.create(e.registrationOf(r.Name, service, 80))
	return &kube{api: e.Client, namespace: e.namespace}
}

// registrationOf registers the Pods with app=nginx in one Registry.
func (e *env) registrationOf(registry, service string, port int32) *usherv1alpha1.Registration {
	return &usherv1alpha1.Registration{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: registrationName},
		Spec: usherv1alpha1.RegistrationSpec{
			Selector:   metav1.LabelSelector{MatchLabels: map[string]string{"app": "nginx"}},
			Registries: []string{registry},
			Instance:   usherv1alpha1.Instance{Service: service, Port: intstr.FromInt32(port), Weight: 7},
			Hooks:      seedHooks(),
			Drain:      usherv1alpha1.Drain{Propagation: &metav1.Duration{Duration: time.Second}},
		},
	}
}

// TestStoryEndpointSlice takes a Pod into and out of a Service of its namespace.
func TestStoryEndpointSlice(t *testing.T) {
	e := newEnv(t)
	set := e.cloneSet(lifecycleDemo)
	k := e.newServices("web")
	name := e.podOf(set, "aaaaa", appsv1alpha1.StateNormal).Name
	e.kubelet(name, "10.0.0.1", true)
	e.hasLabel(name, keyCreated, "false")
	list := k.slices(t, "web")
	if len(list) != 1 || len(list[0].Endpoints) != 1 || list[0].Endpoints[0].Addresses[0] != "10.0.0.1" ||
		list[0].Endpoints[0].TargetRef.Name != name {
		t.Errorf("the Service has the slices %+v", list)
	}
	e.condition(usherv1alpha1.ConditionReady, "True", "")
	e.never("an entry that is as it should be", 2*time.Second, func() string {
		if now := k.slices(t, "web"); len(now) != 1 || now[0].ResourceVersion != list[0].ResourceVersion {
			return "was written again"
		}
		return ""
	})
	e.state(name, appsv1alpha1.StatePreparingDelete)
	e.hasLabel(name, keyDelete, "false")
	if left := k.slices(t, "web"); len(left) != 0 {
		t.Errorf("a drained Pod is in %+v", left)
	}
	e.remove(e.pod(name))
	e.vanishes(name)
}

// managers waits until the Service web has slices of exactly these managers.
func (k *kube) managers(e *env, want ...string) {
	e.Helper()
	e.eventually("slices of "+fmt.Sprint(want), func() string {
		var have []string
		for _, s := range k.slices(e.T, "web") {
			if len(s.Endpoints) > 0 {
				have = append(have, s.Labels[discoveryv1.LabelManagedBy])
			}
		}
		slices.Sort(have)
		if !slices.Equal(have, want) {
			return fmt.Sprintf("are those of %v", have)
		}
		return ""
	})
}

// bind assigns a Pod to a node: Kubernetes leaves Pods without a node out of slices.
func (e *env) bind(name string) {
	e.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}
	e.create(node)
	e.Cleanup(func() { _ = e.Delete(context.Background(), node) })
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node.Name}}
	if err := e.SubResource("binding").Create(e.Context(), e.pod(name), binding); err != nil {
		e.Fatal(err)
	}
}

// TestStoryServiceMoves takes over a Service from Kubernetes' own controllers, which
// run too: its Pod is listed all the time, and in the end only by Usher.
func TestStoryServiceMoves(t *testing.T) {
	const theirs, mirror = "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"
	e := newEnv(t)
	set := e.cloneSet(lifecycleDemo)
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
	e.newServices("web")
	e.hasLabel(name, keyCreated, "false")
	k.managers(e, theirs, "usher.dev")

	e.patch(service, map[string]any{"spec": map[string]any{"selector": nil}})
	k.managers(e, theirs, mirror, "usher.dev")
	err := e.DeleteAllOf(t.Context(), &discoveryv1.EndpointSlice{}, client.InNamespace(e.namespace),
		client.MatchingLabels{discoveryv1.LabelManagedBy: theirs})
	if err != nil {
		t.Fatal(err)
	}
	e.remove(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "web"}}) //nolint:staticcheck // Kubernetes still makes them.
	k.managers(e, "usher.dev")
	mine := k.slices(t, "web")[0].ResourceVersion
	e.never("Usher's slice", 2*time.Second, func() string {
		if now := k.slices(t, "web"); len(now) != 1 || now[0].ResourceVersion != mine {
			return fmt.Sprintf("is not left alone: %+v", now)
		}
		return ""
	})
	e.state(name, appsv1alpha1.StatePreparingDelete)
	e.hasLabel(name, keyDelete, "false")
	k.managers(e)
}
