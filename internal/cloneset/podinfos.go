// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// podInfos keeps what the last pass read of a set's Pods, as it left them, so that the
// next pass reads only Pods that have changed. An idle set has none: they would retain
// Pod versions that the cache no longer holds.
type podInfos struct {
	mu   sync.Mutex
	sets map[types.NamespacedName][]*plan.PodInfo
}

func newPodInfos() *podInfos { return &podInfos{sets: map[types.NamespacedName][]*plan.PodInfo{}} }

func (r *podInfos) of(set types.NamespacedName) []*plan.PodInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sets[set]
}

// keep stores what was read of a set, unless it is idle.
func (r *podInfos) keep(set types.NamespacedName, pods []*plan.PodInfo, idle bool) {
	if idle {
		r.forget(set)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sets[set] = pods
}

// forget drops those of a set.
func (r *podInfos) forget(set types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sets, set)
}

// isIdle reports whether a pass had nothing to do and nothing is outstanding: no Pod is
// terminating either.
func isIdle(counts plan.Counts, decided *plan.Plan, left *plan.Snapshot) bool {
	return counts.RolledOut && len(decided.Actions) == 0 && counts.Replicas == len(left.Pods)
}
