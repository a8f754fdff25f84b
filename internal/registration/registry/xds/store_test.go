// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// slice returns a slice of the service web in the namespace demo, with ready endpoints.
func slice(name, version string, addresses ...string) *discoveryv1.EndpointSlice {
	port := int32(80)
	made := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: name, ResourceVersion: version, Labels: map[string]string{LabelService: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	for _, address := range addresses {
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return made
}

func conditions(ready, serving, terminating bool) discoveryv1.EndpointConditions {
	return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
}

func list(version string, slices ...*discoveryv1.EndpointSlice) *discoveryv1.EndpointSliceList {
	made := &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
	for _, s := range slices {
		made.Items = append(made.Items, *s)
	}
	return made
}

// serves checks the endpoints that clients receive, as address:port, with ! for a
// draining one.
func serves(t *testing.T, s *Store, name, want string) {
	t.Helper()
	r, err := s.assignment(name)
	registrytest.NoError(t, err)
	var made endpointv3.ClusterLoadAssignment
	registrytest.NoError(t, r.data.UnmarshalTo(&made))
	var have []string
	for _, locality := range made.GetEndpoints() {
		if locality.GetLocality() == nil || locality.GetLoadBalancingWeight().GetValue() == 0 {
			t.Errorf("gRPC refuses or skips %v", locality)
		}
		for _, e := range locality.GetLbEndpoints() {
			socket := e.GetEndpoint().GetAddress().GetSocketAddress()
			text := fmt.Sprintf("%s:%d", socket.GetAddress(), socket.GetPortValue())
			if e.GetHealthStatus() == corev3.HealthStatus_DRAINING {
				text += "!"
			}
			have = append(have, text)
		}
	}
	if made.GetClusterName() != name || strings.Join(have, " ") != want {
		t.Errorf("%s is served as %s %v, want %s", name, made.GetClusterName(), have, want)
	}
}

func TestStoreFollows(t *testing.T) {
	s := NewStore()
	serves(t, s, "web.demo", "")
	one, two := slice("one", "1", "10.0.0.2", "10.0.0.1"), slice("two", "2", "10.0.0.3", "10.0.0.1")
	handler := s.handler()
	handler.OnAdd(one, true)
	handler.OnAdd(two, false)
	serves(t, s, "web.demo", "10.0.0.1:80 10.0.0.2:80 10.0.0.3:80")
	serves(t, s, "web.other", "")

	fewer := slice("one", "3", "10.0.0.2")
	handler.OnUpdate(one, fewer)
	serves(t, s, "web.demo", "10.0.0.1:80 10.0.0.2:80 10.0.0.3:80")
	handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "demo/two", Obj: two})
	serves(t, s, "web.demo", "10.0.0.2:80")

	moved := slice("one", "4", "10.0.0.2")
	moved.Labels[LabelService] = "shop"
	handler.OnUpdate(fewer, moved)
	serves(t, s, "web.demo", "")
	serves(t, s, "shop.demo", "10.0.0.2:80")
	left := slice("one", "5", "10.0.0.2")
	left.Labels = nil
	handler.OnUpdate(moved, left)
	serves(t, s, "shop.demo", "")
	if len(s.services)+len(s.names)+len(s.encoded) > 0 {
		t.Errorf("what is gone is remembered: %v %v %v", s.services, s.names, s.encoded)
	}
}

// TestStoreConditions checks that endpoints in service and terminating ones are served.
func TestStoreConditions(t *testing.T) {
	s := NewStore()
	one := slice("one", "1", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
	one.Endpoints[1].Conditions = conditions(false, true, true)
	one.Endpoints[2].Conditions = conditions(false, false, true)
	one.Endpoints[3].Conditions = conditions(false, true, false)
	s.handle(one, false)
	serves(t, s, "web.demo", "10.0.0.1:80 10.0.0.2:80!")
	// Another slice has the same address, in service.
	s.handle(slice("two", "2", "10.0.0.2"), false)
	serves(t, s, "web.demo", "10.0.0.1:80 10.0.0.2:80")

	noPort, name := slice("two", "3", "10.0.0.9"), slice("one", "4", "web.example.com")
	noPort.Ports, name.AddressType = nil, discoveryv1.AddressTypeFQDN
	s.handle(noPort, false)
	s.handle(name, false)
	serves(t, s, "web.demo", "")
}

// TestStoreVersions checks that a version changes exactly when the served state does.
func TestStoreVersions(t *testing.T) {
	s, other := NewStore(), NewStore()
	version := func(s *Store) string {
		t.Helper()
		r, err := s.assignment("web.demo")
		registrytest.NoError(t, err)
		return r.version
	}
	s.handle(slice("one", "1", "10.0.0.1", "10.0.0.2"), false)
	other.handle(slice("b", "7", "10.0.0.2"), false)
	other.handle(slice("a", "8", "10.0.0.1"), false)
	before := version(s)
	if version(other) != before {
		t.Error("two replicas say another version of the same")
	}
	s.handle(slice("one", "2", "10.0.0.1"), false)
	if version(s) == before {
		t.Error("an endpoint is gone, and the version is the same")
	}
}

// TestAwaitServed waits for what a list has and the store lacks.
func TestAwaitServed(t *testing.T) {
	one, two := slice("one", "10", "10.0.0.1"), slice("two", "20", "10.0.0.2")
	for name, test := range map[string]struct {
		list    *discoveryv1.EndpointSliceList
		missing string
		events  func(s *Store)
	}{
		"all is known":            {list("20", one, two), "", nil},
		"a newer slice is known":  {list("15", one), "", nil},
		"a new slice":             {list("30", one, two, slice("three", "30")), "three", func(s *Store) { s.handle(slice("three", "30"), false) }},
		"a new slice, gone again": {list("30", one, two, slice("three", "30")), "three", func(s *Store) { s.handle(slice("three", "31"), true) }},
		"a changed slice":         {list("30", one, slice("two", "30")), "two", func(s *Store) { s.handle(slice("two", "30"), false) }},
		"the end of a slice":      {list("30", one), "two", func(s *Store) { s.handle(slice("two", "25"), true) }},
		"no slice is left":        {list("31", two), "one", func(s *Store) { s.handle(slice("one", "31"), true) }},
	} {
		s := NewStore()
		s.handle(one, false)
		s.handle(two, false)
		missing, err := s.missing("web.demo", test.list)
		if err != nil || missing != test.missing {
			t.Errorf("%s: %q is missing, want %q: %v", name, missing, test.missing, err)
		}
		done := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		go func() { done <- s.awaitServed(ctx, "demo", "web", test.list) }()
		if test.events != nil {
			test.events(s)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

func TestAwaitServedEnds(t *testing.T) {
	s := NewStore()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.awaitServed(ctx, "demo", "web", list("10", slice("one", "10")))
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "EndpointSlice one") {
		t.Errorf("a change that nobody serves: %v", err)
	}
	if len(s.watchers) > 0 {
		t.Error("a watcher is left")
	}
	s.handle(slice("one", "10"), false)
	if err := s.awaitServed(t.Context(), "demo", "web", list("x", slice("two", "x"))); err == nil {
		t.Error("a version that is no number is compared")
	}
}
