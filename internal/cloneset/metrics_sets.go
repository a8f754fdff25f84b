// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

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

func newSetCollector(now func() time.Time) *setCollector {
	return &setCollector{
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
	}
}

func keyOf(set *apps.CloneSet) types.NamespacedName {
	return types.NamespacedName{Namespace: set.Namespace, Name: set.Name}
}

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
