// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"testing"
	"testing/synctest"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// TestService follows the slices of one Service: what is not ready, or in a slice that goes,
// leaves.
func TestService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slice := func(name, service string, ready *bool, addresses ...string) *discoveryv1.EndpointSlice {
			s := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, UID: types.UID(name), Labels: map[string]string{discoveryv1.LabelServiceName: service}},
				Ports:      []discoveryv1.EndpointPort{{Port: new(int32(80))}},
			}
			for _, address := range addresses {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ready}})
			}
			return s
		}
		api := fake.NewClientset(slice("one", "web", nil, "10.0.0.1"), slice("two", "web", new(true), "10.0.0.2"), slice("other", "db", nil, "10.0.0.3"))
		slices := api.DiscoveryV1().EndpointSlices("demo")
		ctx, cancel := context.WithCancel(t.Context())
		received, done := &recorder{}, make(chan error)
		go func() { done <- Service{Client: api, Namespace: "demo", Name: "web"}.Follow(ctx, received) }()
		for _, step := range []struct {
			do   func() error
			want string
		}{
			{func() error { return nil }, `{"10.0.0.1:80":"10.0.0.1:80","10.0.0.2:80":"10.0.0.2:80"}`},
			{func() error {
				_, err := slices.Update(ctx, slice("two", "web", new(false), "10.0.0.2"), metav1.UpdateOptions{})
				return err
			}, `{"10.0.0.1:80":"10.0.0.1:80"}`},
			{func() error { return slices.Delete(ctx, "one", metav1.DeleteOptions{}) }, `{}`},
		} {
			registrytest.NoError(t, step.do())
			if synctest.Wait(); !received.has(step.want) {
				t.Errorf("received %v, want %s", received.entries, step.want)
			}
		}
		cancel()
		if err := <-done; err == nil {
			t.Error("it ends without an error when the context does")
		}
	})
}
