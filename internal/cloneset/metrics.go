// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	// parallel is how many Pods of a set are written at a time.
	parallel prometheus.Gauge
	updates  prometheus.Histogram
	passes   prometheus.Histogram
}

func newMetrics(now func() time.Time) *metrics {
	return &metrics{
		sets: &setCollector{
			now:  now,
			sets: map[types.NamespacedName]setState{},
			pods: prometheus.NewDesc("usher_cloneset_pods",
				"Pods of a CloneSet by lifecycle state, without terminating Pods.",
				[]string{"namespace", "cloneset", "state"}, nil),
			blocked: prometheus.NewDesc("usher_cloneset_blocked_pods",
				"Pods that wait at a gate, by the label or finalizer that they wait for; or for a container, by the kubelet's reason.",
				[]string{"namespace", "cloneset", "gate", "key"}, nil),
			wait: prometheus.NewDesc("usher_cloneset_blocked_seconds",
				"How long the longest-waiting Pod has been at a gate.",
				[]string{"namespace", "cloneset", "gate"}, nil),
		},
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "usher_cloneset_writes_total",
			Help: "Write requests to the API server, by result: ok, conflict (the next pass decides again), wait (the API server asks to try again later), error.",
		}, []string{"verb", "result"}),
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "usher_cloneset_planned_actions_total",
			Help: "Planned actions by verb. Each one concerns one Pod.",
		}, []string{"verb"}),
		parallel: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "usher_cloneset_parallel_writes",
			Help: "How many Pods of one CloneSet are written at a time, as found out from how long the API server takes to answer.",
		}),
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
		collectors.Register(registerer, &m.parallel), collectors.Register(registerer, &m.updates), collectors.Register(registerer, &m.passes))
}

// passed records what a pass decided and how it left the set.
func (m *metrics) passed(set *apps.CloneSet, actions []plan.Action, blocked []plan.Blocked, outcomes []outcome, left *plan.Snapshot) {
	for i := range actions {
		m.actions.WithLabelValues(strings.ToLower(string(actions[i].Verb))).Inc()
	}
	for _, o := range outcomes {
		if o.err != nil || o.action.Reason != lifecycle.ReasonUpdateDone {
			continue
		}
		if drained, out := drainOf(o.action.Pod); out {
			m.updates.Observe(left.Now.Sub(drained.Time).Seconds())
		}
	}
	if left.Deletion == plan.LetGo {
		m.sets.forget(keyOf(set))
		return
	}
	m.sets.put(keyOf(set), blocked, left.PodInfos)
}

// wrote counts a write by verb and result, and returns its error.
func (m *metrics) wrote(verb string, err error) error {
	result := "ok"
	switch {
	case err == nil:
	case isConflict(err):
		result = "conflict"
	case apierrors.IsTooManyRequests(err):
		result = "wait"
	default:
		result = "error"
	}
	m.writes.WithLabelValues(verb, result).Inc()
	return err
}

// setCollector reports on each set. It keeps what the last pass found and computes the
// metrics at each scrape: a wait grows between scrapes without a pass, and a deleted set
// leaves nothing behind.
type setCollector struct {
	now           func() time.Time
	pods          *prometheus.Desc
	blocked, wait *prometheus.Desc

	mu   sync.Mutex
	sets map[types.NamespacedName]setState
}

// setState is a set as its last pass left it.
type setState struct {
	states map[apps.LifecycleState]int
	// blocked counts the Pods by gate and key; since is the earliest arrival by gate.
	blocked map[[2]string]int
	since   map[string]time.Time
}

func keyOf(set *apps.CloneSet) types.NamespacedName { return client.ObjectKeyFromObject(set) }

// put records how a pass left a set.
func (c *setCollector) put(set types.NamespacedName, blocked []plan.Blocked, pods []*plan.PodInfo) {
	found := setState{states: map[apps.LifecycleState]int{}, blocked: map[[2]string]int{}, since: map[string]time.Time{}}
	for _, pod := range pods {
		if !pod.Terminating() {
			found.states[knownState(pod.State())]++
		}
	}
	for i := range blocked {
		b := &blocked[i]
		for _, key := range b.Keys {
			found.blocked[[2]string{b.Gate, key}]++
		}
		if earliest, ok := found.since[b.Gate]; !b.Since.IsZero() && (!ok || b.Since.Before(earliest)) {
			found.since[b.Gate] = b.Since
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sets[set] = found
}

// knownState returns a Pod's state, or "other" for an unknown one, so that a Pod's label
// cannot create unlimited series.
func knownState(state apps.LifecycleState) apps.LifecycleState {
	switch state {
	case apps.StatePreparingNormal, apps.StateNormal, apps.StatePreparingUpdate, apps.StateUpdating, apps.StateUpdated, apps.StatePreparingDelete:
		return state
	}
	return "other"
}

// forget drops a set that is gone.
func (c *setCollector) forget(set types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sets, set)
}

// Describe sends the descriptions of the metrics.
func (c *setCollector) Describe(to chan<- *prometheus.Desc) {
	to <- c.pods
	to <- c.blocked
	to <- c.wait
}

// Collect sends the metrics as they are now.
func (c *setCollector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for set, found := range c.sets {
		gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, append([]string{set.Namespace, set.Name}, labels...)...)
		}
		for state, count := range found.states {
			gauge(c.pods, float64(count), string(state))
		}
		for at, count := range found.blocked {
			gauge(c.blocked, float64(count), at[0], at[1])
		}
		for gate, since := range found.since {
			gauge(c.wait, max(now.Sub(since).Seconds(), 0), gate)
		}
	}
}
