// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

// TestAProbeReportsOnceThatARegistryIsBack: that report causes the passes of its users.
func TestAProbeReportsOnceThatARegistryIsBack(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := usherv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	object := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: "backup"}}
	object.Spec.Webhook = &usherv1alpha1.WebhookRegistry{}
	api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(object).WithObjects(object).Build()
	store := memory.New()
	r, err := New(api, api, events.NewFakeRecorder(1), Options{
		Registerer: prometheus.NewRegistry(),
		Connect: func(*usherv1alpha1.Registry, string, map[string][]byte) (registry.Connector, error) {
			return store, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, probe := range []struct {
		fault memory.Fault
		back  int
	}{{memory.None, 0}, {memory.Down, 0}, {memory.None, 1}, {memory.None, 1}} {
		store.Break(probe.fault)
		if _, err := r.ReconcileRegistry(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "backup"}}); err != nil {
			t.Fatal(err)
		}
		if len(r.back) != probe.back {
			t.Errorf("a probe of a registry with fault %d: %d reports that it is back, want %d", probe.fault, len(r.back), probe.back)
		}
	}
}
