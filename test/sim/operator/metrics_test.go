// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
)

// scrape compares the metrics with a text.
func (s *simulation) scrape(want string, names ...string) {
	s.Helper()
	if err := testutil.GatherAndCompare(s.gatherer, strings.NewReader(want), names...); err != nil {
		s.Error(err)
	}
}

func TestMetrics(t *testing.T) {
	s := newSimulation(t)
	s.populate(3)
	s.passes(2)
	s.stores["backup"].Break(memory.ReadOnly)
	pod := s.pods()[0]
	s.enter(pod, apps.StatePreparingUpdate, "")
	s.passes(1)
	began := s.clock.Now()
	s.clock.SetTime(began.Add(time.Second))
	s.passes(1)
	s.scrape(`
# HELP usher_registration_pods Pods of a Registration: all that match, registered, draining, not ready.
# TYPE usher_registration_pods gauge
usher_registration_pods{namespace="demo",registration="nginx",state="draining"} 1
usher_registration_pods{namespace="demo",registration="nginx",state="matched"} 3
usher_registration_pods{namespace="demo",registration="nginx",state="notReady"} 0
usher_registration_pods{namespace="demo",registration="nginx",state="registered"} 2
# HELP usher_registration_registry_pods Pods of a Registration in one registry: registered, draining, waiting.
# TYPE usher_registration_registry_pods gauge
usher_registration_registry_pods{namespace="demo",registration="nginx",registry="backup",state="draining"} 1
usher_registration_registry_pods{namespace="demo",registration="nginx",registry="backup",state="registered"} 3
usher_registration_registry_pods{namespace="demo",registration="nginx",registry="backup",state="waiting"} 1
usher_registration_registry_pods{namespace="demo",registration="nginx",registry="discovery",state="draining"} 1
usher_registration_registry_pods{namespace="demo",registration="nginx",registry="discovery",state="registered"} 2
usher_registration_registry_pods{namespace="demo",registration="nginx",registry="discovery",state="waiting"} 1
# HELP usher_hook_waiting_pods Pods that wait at a gate for a registry.
# TYPE usher_hook_waiting_pods gauge
usher_hook_waiting_pods{gate="inPlaceUpdate",namespace="demo",registration="nginx",registry="backup"} 1
usher_hook_waiting_pods{gate="inPlaceUpdate",namespace="demo",registration="nginx",registry="discovery"} 1
# HELP usher_registry_errors_total Calls to a registry that failed, and changes that it refused.
# TYPE usher_registry_errors_total counter
usher_registry_errors_total{reason="refused",registry="backup"} 2
`, "usher_registration_pods", "usher_registration_registry_pods", "usher_hook_waiting_pods", "usher_registry_errors_total")
	s.scrape(fmt.Sprintf(`
# HELP usher_hook_waiting_since_timestamp_seconds When the Pod began to wait that waits longest at a gate for a registry.
# TYPE usher_hook_waiting_since_timestamp_seconds gauge
usher_hook_waiting_since_timestamp_seconds{gate="inPlaceUpdate",namespace="demo",registration="nginx",registry="backup"} %[1]d
usher_hook_waiting_since_timestamp_seconds{gate="inPlaceUpdate",namespace="demo",registration="nginx",registry="discovery"} %[1]d
`, began.Unix()), "usher_hook_waiting_since_timestamp_seconds")

	s.stores["backup"].Break(memory.None)
	s.clock.SetTime(began.Add(time.Minute))
	s.passes(1)
	s.clock.SetTime(began.Add(time.Minute + 2*propagation))
	s.passes(1)
	s.scrape("", "usher_hook_waiting_pods")
	if n, err := testutil.GatherAndCount(s.gatherer, "usher_hook_wait_seconds"); err != nil || n != 4 {
		t.Errorf("there are %d histograms of waits, want one for created and inPlaceUpdate in each registry", n)
	}
}

// TestOrphansAreCounted counts those that a sweep leaves, and those it removes.
func TestOrphansAreCounted(t *testing.T) {
	s := newSimulation(t)
	s.populate(1)
	s.passes(2)
	for n := range 3 {
		name := fmt.Sprintf("lost-%d", n)
		s.stores["discovery"].Seed(service, registry.Entry{ID: name, Address: "10.9.9.9", Port: 80, Weight: 10,
			Owner: registry.Owner{Cluster: here, Namespace: namespace, Registration: "nginx", Pod: name, PodUID: name}})
		s.guardian.proceeded[types.UID(name)] = true // the invariants expect no entry without its Pod
	}
	for _, want := range []struct{ left, removed float64 }{
		{0, 0},
		{3, 0}, // three of four are more than half: they have to be there in two sweeps
		{0, 3},
	} {
		if left, removed := s.total("usher_registry_orphans"), s.total("usher_orphans_removed_total"); left != want.left || removed != want.removed {
			t.Errorf("%v orphans are left and %v were removed, want %+v", left, removed, want)
		}
		s.wait(repairInterval)
		s.passes(1)
	}
}

// total is the sum of all series of a metric.
func (s *simulation) total(name string) float64 {
	s.Helper()
	families, err := s.gatherer.Gather()
	if err != nil {
		s.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
