// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/collectors"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Values of the label reason of registry errors.
const (
	errorUnavailable = "unavailable"
	errorRefused     = "refused"
)

// metrics are the operator's metrics. The values of labels are names of Registrations and
// Registries, and words that are listed here: none comes from a Pod or an error.
type metrics struct {
	pods        *prometheus.GaugeVec
	perRegistry *prometheus.GaugeVec
	waiting     *prometheus.GaugeVec
	since       *prometheus.GaugeVec
	waits       *prometheus.HistogramVec
	failures    *prometheus.CounterVec
	orphans     *prometheus.GaugeVec
	removed     *prometheus.CounterVec
}

// newMetrics registers the metrics, or takes over those of an earlier operator in this
// process.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		pods: gauge("usher_registration_pods",
			"Pods of a Registration: all that match, registered, draining, not ready.", "namespace", "registration", "state"),
		perRegistry: gauge("usher_registration_registry_pods",
			"Pods of a Registration in one registry: registered, draining, waiting.", "namespace", "registration", "registry", "state"),
		waiting: gauge("usher_hook_waiting_pods",
			"Pods that wait at a gate for a registry.", "namespace", "registration", "gate", "registry"),
		since: gauge("usher_hook_waiting_since_timestamp_seconds",
			"When the Pod began to wait that waits longest at a gate for a registry.", "namespace", "registration", "gate", "registry"),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "usher_hook_wait_seconds",
			Help:    "How long a registry held a Pod at a gate before it had confirmed.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600},
		}, []string{"gate", "registry"}),
		failures: counter("usher_registry_errors_total",
			"Calls to a registry that failed, and changes that it refused.", "registry", "reason"),
		orphans: gauge("usher_registry_orphans",
			"Entries whose Pod or Registration is no more, as the last sweep found and left them.", "namespace", "registry"),
		removed: counter("usher_orphans_removed_total",
			"Entries removed because their Pod or Registration is no more.", "registry"),
	}
	return m, errors.Join(
		collectors.Register(registerer, &m.pods), collectors.Register(registerer, &m.perRegistry), collectors.Register(registerer, &m.waiting),
		collectors.Register(registerer, &m.since), collectors.Register(registerer, &m.waits), collectors.Register(registerer, &m.failures),
		collectors.Register(registerer, &m.orphans), collectors.Register(registerer, &m.removed))
}

// series is one of a vector's, by the values of its labels; the last one may be absent.
type series struct {
	vec    *prometheus.GaugeVec
	labels [4]string
}

func (s series) values() []string {
	if s.labels[3] == "" {
		return s.labels[:3]
	}
	return s.labels[:]
}

// gauges are what is shown of a Registration.
type gauges map[series]float64

// of is what is shown of one Registration after a pass.
func (m *metrics) of(namespace string, o plan.Outcome, status usherv1alpha1.RegistrationStatus) gauges {
	name := o.Registration.Name
	g := gauges{}
	for state, pods := range map[string]int32{
		"matched": o.Pods, "registered": o.Registered, "draining": o.Draining, "notReady": o.NotReady,
	} {
		g[series{m.pods, [4]string{namespace, name, state}}] = float64(pods)
	}
	for _, r := range status.Registries {
		for state, pods := range map[string]int32{"registered": r.Registered, "draining": r.Draining, "waiting": r.Waiting} {
			g[series{m.perRegistry, [4]string{namespace, name, r.Name, state}}] = float64(pods)
		}
	}
	for _, wait := range o.Waiting {
		if wait.Registry == "" || wait.Pod == "" {
			continue
		}
		at := [4]string{namespace, name, string(wait.Gate), wait.Registry}
		g[series{m.waiting, at}]++
		if wait.Since.IsZero() {
			continue
		}
		oldest, since := series{m.since, at}, float64(wait.Since.UnixNano())/float64(time.Second)
		if known, ok := g[oldest]; !ok || since < known {
			g[oldest] = since
		}
	}
	return g
}

// replace shows the gauges instead of those before. It looks at no others: with each
// Registration of the cluster there are more of them.
func (g gauges) replace(before gauges) {
	for s := range before {
		if _, still := g[s]; !still {
			s.vec.DeleteLabelValues(s.values()...)
		}
	}
	for s, value := range g {
		if shown, ok := before[s]; !ok || shown != value {
			s.vec.WithLabelValues(s.values()...).Set(value)
		}
	}
}

// forgetRegistry drops the metrics of a Registry that is gone.
func (m *metrics) forgetRegistry(name string) {
	own := prometheus.Labels{"registry": name}
	m.waits.DeletePartialMatch(own)
	m.failures.DeletePartialMatch(own)
	m.orphans.DeletePartialMatch(own)
	m.removed.DeletePartialMatch(own)
}

func (m *metrics) released(release plan.Release) {
	for _, wait := range release.Waits {
		m.waits.WithLabelValues(string(release.Gate), wait.Registry).Observe(wait.Wait.Seconds())
	}
}

// failed counts an error of a registry.
func (m *metrics) failed(name string, err error) {
	reason := errorUnavailable
	if errors.Is(err, registry.ErrPermanent) {
		reason = errorRefused
	}
	m.failures.WithLabelValues(name, reason).Inc()
}
