// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// absences measures how long Pods are out of their registries before they are back: from the first registry
// that does not list the Pod to the last one that lists it again, as its condition says. A Pod that comes in
// for the first time was not absent, and its condition does not tell that apart. So the Pods that have left are
// kept here, and one that left before this process began is not counted.
type absences struct {
	seconds *prometheus.HistogramVec

	mu   sync.Mutex
	left map[types.UID]absence
}

// absence is since when a Pod is out, and why.
type absence struct {
	since time.Time
	cause plan.OutCause
}

func newAbsences() *absences {
	return &absences{left: map[types.UID]absence{}, seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "usher_out_of_registries_seconds",
		Help:    "How long Pods that came back were out of their registries, from the first one that did not list them to the last one that did again.",
		Buckets: []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800},
	}, []string{"cause"})}
}

// recordTurn records that a Pod's condition has been written. A Pod that is being deleted does not come back, and may be
// gone by now.
func (a *absences) recordTurn(pod *corev1.Pod, next *corev1.PodCondition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := podread.Status(pod, usherv1alpha1.ConditionRegistered)
	switch out, known := a.left[pod.UID]; {
	case was == corev1.ConditionTrue && next.Status == corev1.ConditionFalse && pod.DeletionTimestamp == nil:
		a.left[pod.UID] = absence{next.LastTransitionTime.Time, plan.CauseOut(pod)}
	case known && next.Status == corev1.ConditionTrue:
		a.seconds.WithLabelValues(string(out.cause)).Observe(max(next.LastTransitionTime.Sub(out.since), 0).Seconds())
		delete(a.left, pod.UID)
	}
}

// forget forgets a Pod that does not come back.
func (a *absences) forget(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.left, pod)
}
