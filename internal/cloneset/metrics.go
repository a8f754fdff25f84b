// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/collectors"
)

// metrics are the controller's Prometheus metrics. docs/metrics.md lists them.
type metrics struct {
	// sets reports on each set as its last pass left it.
	sets    *setCollector
	writes  *prometheus.CounterVec
	actions *prometheus.CounterVec
	updates prometheus.Histogram
	passes  prometheus.Histogram
}

func newMetrics(now func() time.Time) *metrics {
	return &metrics{
		sets: newSetCollector(now),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "usher_cloneset_writes_total",
			Help: "Write requests to the API server, by result: ok, conflict (the next pass decides again), wait (the API server asks to try again later), error.",
		}, []string{"verb", "result"}),
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "usher_cloneset_planned_actions_total",
			Help: "Planned actions by verb. Each one concerns one Pod.",
		}, []string{"verb"}),
		updates: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "usher_cloneset_inplace_update_duration_seconds",
			Help:    "How long an in-place update kept a Pod out of service, from its drain until its return.",
			Buckets: []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800},
		}),
		passes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "usher_cloneset_pass_duration_seconds",
			Help:    "How long a pass over one CloneSet took, including its writes.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
	}
}

// register registers the metrics, or takes over those of an earlier controller of this
// process.
func (m *metrics) register(registerer prometheus.Registerer) error {
	return errors.Join(
		collectors.Register(registerer, &m.sets), collectors.Register(registerer, &m.writes), collectors.Register(registerer, &m.actions),
		collectors.Register(registerer, &m.updates), collectors.Register(registerer, &m.passes))
}

// passed records what a pass decided and how it left the set.
func (m *metrics) passed(set *apps.CloneSet, actions []plan.Action, blocked []plan.Blocked, outcomes []outcome, left *plan.Snapshot) {
	for i := range actions {
		m.actions.WithLabelValues(strings.ToLower(string(actions[i].Verb))).Inc()
	}
	for i := range outcomes {
		if out, ok := outOfService(&outcomes[i]); ok {
			m.updates.Observe(left.Now.Sub(out).Seconds())
		}
	}
	if left.Deletion == plan.LetGo {
		m.sets.forget(keyOf(set))
		return
	}
	m.sets.put(keyOf(set), blocked, left.PodInfos)
}

// outOfService returns since when the Pod was drained that the action puts back into
// service after its update.
func outOfService(o *outcome) (time.Time, bool) {
	if o.err != nil || o.action.Reason != lifecycle.ReasonUpdateDone || o.action.Pod == nil {
		return time.Time{}, false
	}
	recorded, out := drainOf(o.action.Pod)
	return recorded.Time, out
}
