// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

func connect(t *testing.T, objects ...client.Object) *Registry {
	t.Helper()
	return New(fake.NewClientBuilder().WithObjects(objects...).Build(), "demo")
}

func web(change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web"}}
	s.Spec.Selector = map[string]string{"app": "web"}
	change(&s.Spec)
	return s
}

func pod(name string, ready *bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ready},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "demo", Name: name, UID: types.UID("uid-" + name)},
	}
}

func slice(name, service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		Ports:      []discoveryv1.EndpointPort{{Port: new(int32(8080))}}, Endpoints: endpoints,
	}
}

// TestList: all slices of the Service, whoever writes them; what is not ready has no weight.
func TestList(t *testing.T) {
	r := connect(t, web(func(*corev1.ServiceSpec) {}),
		slice("web-2", "web", pod("a", new(true)), pod("b", new(false)), discoveryv1.Endpoint{Addresses: []string{"10.0.0.9"}}),
		slice("web-1", "web", pod("a", nil)), slice("other", "other", pod("c", nil)))
	list := checktest.Must(r.List(registrytest.Bounded(t), "web"))(t)
	owner := func(name string) registry.Owner {
		return registry.Owner{Namespace: "demo", Pod: name, PodUID: "uid-" + name}
	}
	want := []registry.Entry{
		{ID: "web-1.0", Address: "10.0.0.1", Port: 8080, Weight: 1, Owner: owner("a"), NoMetadata: true, Version: "ready"},
		{ID: "web-2.0", Address: "10.0.0.1", Port: 8080, Weight: 1, Owner: owner("a"), NoMetadata: true, Version: "ready"},
		{ID: "web-2.1", Address: "10.0.0.1", Port: 8080, Owner: owner("b"), NoMetadata: true, Version: "not ready"},
		{ID: "web-2.2", Address: "10.0.0.9", Port: 8080, Weight: 1, NoMetadata: true, Version: "ready"},
	}
	checktest.Same(t, "listed", want, list)
	checktest.NoError(t, r.Ping(registrytest.Bounded(t)))
}

// TestUnusable: a Service whose endpoints do not follow the readiness of Pods says so, and
// what to do; it is no outage of the others.
func TestUnusable(t *testing.T) {
	for remedy, object := range map[string]client.Object{
		"create it":                       slice("none", "none"),
		"a Registry of the kind endpoint": web(func(s *corev1.ServiceSpec) { s.Selector = nil }),
		"name the Service that selects":   web(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeExternalName }),
		"set it to false":                 web(func(s *corev1.ServiceSpec) { s.PublishNotReadyAddresses = true }),
	} {
		_, err := connect(t, object).List(registrytest.Bounded(t), "web")
		registrytest.Check(t, remedy, err, registry.ErrPermanent)
		registrytest.Check(t, remedy, err, registry.ErrOneService)
		if err != nil && !strings.Contains(err.Error(), remedy) {
			t.Errorf("%q does not say %q", err, remedy)
		}
	}
}
