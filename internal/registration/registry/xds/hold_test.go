// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// TestHeldBack checks that an entry of weight 0 stays listed as draining.
func TestHeldBack(t *testing.T) {
	kube, s := fake.NewClientBuilder().Build(), NewStore()
	c, err := New(Options{Reader: kube, Writer: kube, Namespace: "demo", Store: s})
	if err != nil {
		t.Fatal(err)
	}
	var changes []registry.Change
	for _, e := range []registry.Entry{{ID: "held", Address: "10.0.0.1"}, {ID: "other", Address: "10.0.0.2", Weight: 10}} {
		e.Port, e.Owner = 80, registry.Owner{Cluster: "here", PodUID: e.ID}
		changes = append(changes, registry.Change{Op: registry.Put, Entry: e})
	}
	if err := c.Apply(t.Context(), "web", changes); err != nil {
		t.Fatal(err)
	}
	var made discoveryv1.EndpointSliceList
	if err := kube.List(t.Context(), &made); err != nil {
		t.Fatal(err)
	}
	for n := range made.Items {
		s.handle(&made.Items[n], false)
	}
	serves(t, s, "web.demo", "10.0.0.1:80! 10.0.0.2:80")
	listed, err := c.List(t.Context(), "web")
	if err != nil || len(listed) != 2 || listed[0].Weight != 0 || listed[1].Weight != 10 {
		t.Errorf("listed: %+v, %v", listed, err)
	}
}
