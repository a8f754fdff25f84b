// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what the operator tells a Prometheus.
type metrics struct {
	pods     *prometheus.GaugeVec
	waits    *prometheus.HistogramVec
	failures *prometheus.CounterVec
	orphans  prometheus.Counter
}

// newMetrics registers the metrics, or takes over those of an earlier operator
// of this process.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		pods: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "usher_registration_pods",
			Help: "Pods of a Registration: all that match, registered, draining, not ready.",
		}, []string{"namespace", "registration", "state"}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "usher_hook_wait_seconds",
			Help:    "How long a registry held a Pod at a gate before it had confirmed.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600},
		}, []string{"gate", "registry"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "usher_registry_errors_total",
			Help: "Calls to a registry that failed.",
		}, []string{"registry"}),
		orphans: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "usher_orphans_removed_total",
			Help: "Entries removed because their Pod or Registration is no more.",
		}),
	}
	return m, errors.Join(
		register(registerer, &m.pods), register(registerer, &m.waits),
		register(registerer, &m.failures), register(registerer, &m.orphans))
}

func register[C prometheus.Collector](registerer prometheus.Registerer, collector *C) error {
	err := registerer.Register(*collector)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(C); ok {
			*collector = existing
			return nil
		}
	}
	return err
}

func (m *metrics) count(namespace string, o Outcome) {
	set := func(state string, value int32) {
		m.pods.WithLabelValues(namespace, o.Registration.Name, state).Set(float64(value))
	}
	set("matched", o.Pods)
	set("registered", o.Registered)
	set("draining", o.Draining)
	set("notReady", o.NotReady)
}

func (m *metrics) forget(namespace, registration string) {
	m.pods.DeletePartialMatch(prometheus.Labels{"namespace": namespace, "registration": registration})
}

func (m *metrics) released(release Release) {
	for _, wait := range release.Waits {
		m.waits.WithLabelValues(string(release.Gate), wait.Registry).Observe(wait.Wait.Seconds())
	}
}
