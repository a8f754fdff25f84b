// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// TestMetricsOfWhatIsGone forgets a Registration and a Registry.
func TestMetricsOfWhatIsGone(t *testing.T) {
	scraped := prometheus.NewRegistry()
	m, err := newMetrics(scraped)
	if err != nil {
		t.Fatal(err)
	}
	waits := plan.Plan{Waiting: []plan.Waiting{{Registration: "nginx", Pod: "a", Gate: plan.GateInPlaceUpdate, Registry: "discovery", Since: epoch}}}
	m.count(namespace, plan.Outcome{Registration: &usherv1alpha1.Registration{ObjectMeta: metav1.ObjectMeta{Name: "nginx"}}}, waits,
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
