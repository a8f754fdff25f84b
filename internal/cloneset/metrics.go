// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/collectors"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
)

// metrics are the controller's Prometheus metrics. docs/metrics.md lists them.
type metrics struct {
	// sets reports on each set as its last pass left it.
	sets    *collectors.Left[types.NamespacedName]
	writes  *prometheus.CounterVec
	actions *prometheus.CounterVec
	// parallel is how many Pods of a set are written at a time.
	parallel prometheus.Gauge
	updates  prometheus.Histogram
	passes   prometheus.Histogram
	now      func() time.Time
}

// Metrics of CloneSets as they are.
var (
	kindPods = prometheus.NewDesc("usher_cloneset_pods",
		"Pods of a CloneSet by lifecycle state, without terminating Pods.", []string{"namespace", "cloneset", "state"}, nil)
	kindBlocked = prometheus.NewDesc("usher_cloneset_blocked_pods",
		"Pods that wait at a gate, by the label or finalizer that they wait for; or for a container, by the kubelet's reason.",
		[]string{"namespace", "cloneset", "gate", "key"}, nil)
	kindWait = prometheus.NewDesc("usher_cloneset_blocked_seconds",
		"How long the longest-waiting Pod has been at a gate.", []string{"namespace", "cloneset", "gate"}, nil)
)

func newMetrics(now func() time.Time) *metrics {
	return &metrics{
		now: now, sets: collectors.NewLeft[types.NamespacedName](kindPods, kindBlocked, kindWait),
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
			Help:    "How long an in-place update kept a Pod out of service, from when it began to leave its registries, or its endpoints, until it was put back.",
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
func (m *metrics) passed(set *apps.CloneSet, actions []plan.Action, blocked []plan.Blocked, outcomes []outcome, after *plan.Snapshot) {
	for i := range actions {
		m.planned(&actions[i])
	}
	for _, o := range outcomes {
		if o.err != nil || o.action.Reason != lifecycle.ReasonUpdateDone {
			continue
		}
		if began, out := drainBegan(o.action.Pod); out {
			m.updates.Observe(max(m.now().Sub(began), 0).Seconds())
		}
	}
	if after.Deletion == plan.LetGo {
		m.sets.Forget(keyOf(set))
		return
	}
	m.sets.Put(keyOf(set), m.ofSet(keyOf(set), blocked, after.PodInfos))
}

// drainBegan returns when a Pod that is out of service for an update in place began to leave: when it
// moved to the gate of the hook that takes it out of its registries, or else when it got
// InPlaceUpdateReady=False.
func drainBegan(pod *corev1.Pod) (began time.Time, out bool) {
	drained, out := drainOf(pod)
	record, err := inplace.ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil || record.Left.IsZero() {
		return drained.Time, out
	}
	return record.Left.Time, out
}

// planned counts an action.
func (m *metrics) planned(a *plan.Action) {
	m.actions.WithLabelValues(strings.ToLower(string(a.Verb))).Inc()
}

// wrote counts a write by verb and result, and returns its error.
func (m *metrics) wrote(verb string, err error) error {
	result := "ok"
	switch {
	case err == nil:
	case kube.Conflicts(err):
		result = "conflict"
	case apierrors.IsTooManyRequests(err):
		result = "wait"
	default:
		result = "error"
	}
	m.writes.WithLabelValues(verb, result).Inc()
	return err
}

func keyOf(set *apps.CloneSet) types.NamespacedName { return client.ObjectKeyFromObject(set) }

// ofSet returns a function that sends the metrics of a set as a pass left it, with the times of waits
// as of the scrape.
func (m *metrics) ofSet(set types.NamespacedName, blocked []plan.Blocked, pods []*plan.PodInfo) func(to chan<- prometheus.Metric) {
	states, waiting, since := map[apps.LifecycleState]int{}, map[[2]string]int{}, map[string]time.Time{}
	for _, pod := range pods {
		if !pod.Terminating() {
			states[knownState(pod.State())]++
		}
	}
	for i := range blocked {
		b := &blocked[i]
		for _, key := range b.Keys {
			waiting[[2]string{b.Gate, key}]++
		}
		if !b.Since.IsZero() {
			since[b.Gate] = list.Earliest(since[b.Gate], b.Since)
		}
	}
	return func(to chan<- prometheus.Metric) {
		gauge := func(kind *prometheus.Desc, value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(kind, prometheus.GaugeValue, value, append([]string{set.Namespace, set.Name}, labels...)...)
		}
		for state, count := range states {
			gauge(kindPods, float64(count), string(state))
		}
		for at, count := range waiting {
			gauge(kindBlocked, float64(count), at[0], at[1])
		}
		for gate, earliest := range since {
			gauge(kindWait, max(m.now().Sub(earliest).Seconds(), 0), gate)
		}
	}
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
