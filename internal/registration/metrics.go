// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/collectors"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Values of the label reason of registry errors.
const errorUnavailable, errorRefused = "unavailable", "refused"

// metrics are the operator's metrics. The values of labels are names of Registrations and
// Registries, and words that are listed here: none comes from a Pod or an error.
type metrics struct {
	registrations *collectors.Left[string] // by namespace
	waits         *prometheus.HistogramVec
	failures      *prometheus.CounterVec
	orphans       *prometheus.GaugeVec
	removed       *prometheus.CounterVec
	drains        *prometheus.CounterVec
	absences      *absences
}

// What there is of Registrations.
var (
	kindPods = prometheus.NewDesc("usher_registration_pods",
		"Pods of a Registration: all that match, registered, draining, not ready.", []string{"namespace", "registration", "state"}, nil)
	kindPerRegistry = prometheus.NewDesc("usher_registration_registry_pods",
		"Pods of a Registration in one registry: registered, draining, waiting.", []string{"namespace", "registration", "registry", "state"}, nil)
	kindWaiting = prometheus.NewDesc("usher_hook_waiting_pods",
		"Pods that wait at a gate for a registry.", []string{"namespace", "registration", "gate", "registry"}, nil)
	kindSince = prometheus.NewDesc("usher_hook_waiting_since_timestamp_seconds",
		"When the Pod began to wait that waits longest at a gate for a registry.", []string{"namespace", "registration", "gate", "registry"}, nil)
)

// newMetrics registers the metrics, or takes over those of an earlier operator in this
// process.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		registrations: collectors.NewLeft[string](kindPods, kindPerRegistry, kindWaiting, kindSince),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "usher_hook_wait_seconds",
			Help:    "How long a registry held a Pod at a gate before it had confirmed.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600},
		}, []string{"gate", "registry"}),
		failures: counter("usher_registry_errors_total",
			"Calls to a registry that failed, and changes that it refused.", "registry", "reason"),
		orphans: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "usher_registry_orphans",
			Help: "Entries whose Pod or Registration is no more, as the last sweep found and left them.",
		}, []string{"namespace", "registry"}),
		removed: counter("usher_orphans_removed_total",
			"Entries removed because their Pod or Registration is no more.", "registry"),
		drains: counter("usher_drains_total",
			"Drains that somebody waited for, by how they ended: done, deadline, takenBack; or why there was none: skipped, forced, unguarded.", "result"),
		absences: newAbsences(),
	}
	for _, result := range plan.DrainResults() {
		m.drains.WithLabelValues(string(result)) // a series that begins at 1 has no increase
	}
	return m, errors.Join(
		collectors.Register(registerer, &m.registrations), collectors.Register(registerer, &m.waits), collectors.Register(registerer, &m.failures),
		collectors.Register(registerer, &m.orphans), collectors.Register(registerer, &m.removed),
		collectors.Register(registerer, &m.drains), collectors.Register(registerer, &m.absences.seconds))
}

// showCopies exports whether this cluster may be a copy of another one.
func (m *metrics) showCopies(registerer prometheus.Registerer, copied func() bool) error {
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "usher_cluster_copied",
		Help: "1 while Usher leaves registries alone, because this cluster may be a copy of one whose entries are there.",
	}, func() float64 {
		if copied() {
			return 1
		}
		return 0
	})
	return collectors.Register(registerer, &gauge)
}

// gauge is what a pass found. It becomes a metric when somebody scrapes.
type gauge struct {
	kind   *prometheus.Desc
	value  float64
	labels []string
}

// metricsOf sends the gauges at each scrape.
func metricsOf(gauges []gauge) func(to chan<- prometheus.Metric) {
	return func(to chan<- prometheus.Metric) {
		for _, g := range gauges {
			to <- prometheus.MustNewConstMetric(g.kind, prometheus.GaugeValue, g.value, g.labels...)
		}
	}
}

// gaugesOf are those of one Registration after a pass.
func gaugesOf(namespace string, o plan.Outcome, status usherv1alpha1.RegistrationStatus) (all []gauge) {
	add := func(kind *prometheus.Desc, value float64, labels ...string) {
		all = append(all, gauge{kind, value, append([]string{namespace, o.Registration.Name}, labels...)})
	}
	for state, pods := range map[string]int32{
		"matched": o.Pods, "registered": o.Registered, "draining": o.Draining, "notReady": o.NotReady,
	} {
		add(kindPods, float64(pods), state)
	}
	for _, r := range status.Registries {
		for state, pods := range map[string]int32{"registered": r.Registered, "draining": r.Draining, "waiting": r.Waiting} {
			add(kindPerRegistry, float64(pods), r.Name, state)
		}
	}
	type place struct{ gate, registry string }
	waiting, since := map[place]int{}, map[place]time.Time{}
	for _, wait := range o.Waiting {
		if wait.Registry != "" && wait.Pod != "" {
			at := place{string(wait.Gate), wait.Registry}
			waiting[at]++
			since[at] = list.Earliest(since[at], wait.Since)
		}
	}
	for at, pods := range waiting {
		add(kindWaiting, float64(pods), at.gate, at.registry)
		if oldest := since[at]; !oldest.IsZero() {
			add(kindSince, float64(oldest.UnixNano())/float64(time.Second), at.gate, at.registry)
		}
	}
	return all
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

// patched counts what a patch of a Pod that has been made says.
func (m *metrics) patched(patch *plan.PodPatch) {
	for _, release := range patch.Released {
		m.released(release)
	}
	for _, result := range patch.Results {
		m.drains.WithLabelValues(string(result)).Inc()
	}
	if patch.Condition != nil {
		m.absences.recordTurn(patch.Pod, patch.Condition)
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
