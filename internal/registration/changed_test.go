// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"maps"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// TestChangedServicesAreListed: the pass after a change of an EndpointSlice lists its Service, also if it was due
// already, and although each Pod says that nothing is left to do. Of Services that nobody follows nothing stays.
func TestChangedServicesAreListed(t *testing.T) {
	a := attack(t, podOf("calm", "nobody", ""))
	object := &usherv1alpha1.Registry{}
	checktest.NoError(t, a.client.Get(t.Context(), client.ObjectKey{Name: "discovery"}, object))
	object.Spec = usherv1alpha1.RegistrySpec{Service: &usherv1alpha1.ServiceRegistry{}}
	checktest.NoError(t, a.client.Update(t.Context(), object))
	changes := func(service string) {
		slice := metadataOf(schema.GroupVersionKind{})
		slice.Namespace, slice.Labels = namespace, map[string]string{discoveryv1.LabelServiceName: service}
		a.ofService(serviceOf).Update(t.Context(), event.UpdateEvent{ObjectOld: slice, ObjectNew: slice}, &noted{})
	}
	begins := func() []string {
		a.begin(namespace)
		seen, _, err := a.observe(t.Context(), namespace, a.stateOf(namespace))
		checktest.NoError(t, err)
		services := list.Map(slices.Collect(maps.Keys(seen.snapshot.Due)), func(t plan.Target) string { return t.Service })
		return slices.Compact(slices.Sorted(slices.Values(services)))
	}
	checktest.Same(t, "listed in the first pass for a change", 0, len(begins()))
	changes("nobody's")
	changes("web")
	changes("other")
	checktest.Same(t, "listed after changes", []string{"other", "web"}, begins())
	checktest.Same(t, "listed without one", 0, len(begins()))
	changes("nobody's")
	checktest.Same(t, "noted of a Service that nobody follows", 0, len(a.shared(namespace).changed))
}
