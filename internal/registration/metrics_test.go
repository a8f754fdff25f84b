// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
)

// scrape compares what the operator tells with the text.
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
	s.enter(&pod, appsv1alpha1.StatePreparingUpdate, "")
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
	s.clock.SetTime(began.Add(time.Minute + 2*simPropagation))
	s.passes(1)
	s.scrape("", "usher_hook_waiting_pods")
	if n := testutil.CollectAndCount(s.operator.metrics.waits); n != 4 {
		t.Errorf("there are %d histograms of waits, want one for created and inPlaceUpdate in each registry", n)
	}
}

// TestOrphansAreCounted shows those that a sweep leaves, and those it removes.
func TestOrphansAreCounted(t *testing.T) {
	s := newSimulation(t)
	s.populate(1)
	s.passes(2)
	for n := range 3 {
		name := fmt.Sprintf("lost-%d", n)
		s.stores["discovery"].Seed(service, registry.Entry{ID: name, Address: "10.9.9.9", Port: 80, Weight: 10,
			Owner: registry.Owner{Cluster: here, Namespace: namespace, Registration: "nginx", Pod: name, PodUID: name}})
	}
	orphans := func(left, removed float64) {
		t.Helper()
		m := s.operator.metrics
		if have := testutil.ToFloat64(m.orphans.WithLabelValues(namespace, "discovery")); have != left {
			t.Errorf("%v orphans are left, want %v", have, left)
		}
		if have := testutil.ToFloat64(m.removed.WithLabelValues("discovery")); have != removed {
			t.Errorf("%v orphans were removed, want %v", have, removed)
		}
	}
	orphans(0, 0)
	s.clock.SetTime(s.clock.Now().Add(defaultRepair))
	s.passes(1) // Three of four are more than half: they have to be there in two sweeps.
	orphans(3, 0)
	s.clock.SetTime(s.clock.Now().Add(defaultRepair))
	s.passes(1)
	orphans(0, 3)
}

// TestMetricsOfWhatIsGone forgets a Registration and a Registry.
func TestMetricsOfWhatIsGone(t *testing.T) {
	scraped := prometheus.NewRegistry()
	m, err := newMetrics(scraped)
	if err != nil {
		t.Fatal(err)
	}
	waits := plan.Plan{Waiting: []plan.Waiting{{Registration: "nginx", Pod: "a", Gate: plan.GateInPlaceUpdate, Registry: "discovery", Since: epoch}}}
	m.count(namespace, plan.Outcome{Registration: newRegistration("nginx", "app", "nginx")}, waits,
		usherv1alpha1.RegistrationStatus{Registries: []usherv1alpha1.RegistryPods{{Name: "discovery"}}})
	m.released(plan.Release{Gate: plan.GateCreated, Waits: []plan.RegistryWait{{Registry: "discovery", Wait: time.Second}}})
	m.failed("discovery", errors.New("refused"))
	m.orphans.WithLabelValues(namespace, "discovery").Set(1)
	m.removed.WithLabelValues("discovery").Add(1)
	if n, err := testutil.GatherAndCount(scraped); err != nil || n != 13 {
		t.Errorf("there are %d series, %v", n, err)
	}
	m.forget(namespace, "nginx")
	m.forgetRegistry("discovery")
	if n, err := testutil.GatherAndCount(scraped); err != nil || n != 0 {
		t.Errorf("%d series are left, %v", n, err)
	}
}
