// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// readings are what the last pass over a set has read of its Pods, as it left them,
// so that the next one reads only those that have changed since. A set at rest has
// none: they would keep versions of its Pods that the cache holds no more.
type readings struct {
	mu   sync.Mutex
	sets map[types.NamespacedName][]*plan.Reading
}

func newReadings() *readings { return &readings{sets: map[types.NamespacedName][]*plan.Reading{}} }

func (r *readings) of(set types.NamespacedName) []*plan.Reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sets[set]
}

// keep takes the readings of a set, unless it is at rest.
func (r *readings) keep(set types.NamespacedName, pods []*plan.Reading, rest bool) {
	if rest {
		r.forget(set)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sets[set] = pods
}

// forget drops those of a set.
func (r *readings) forget(set types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sets, set)
}

// atRest says that a pass had nothing to do, and left a set with nothing to come: no
// Pod is on its way out either.
func atRest(counts plan.Counts, decided *plan.Plan, left *plan.Snapshot) bool {
	return counts.RolledOut && len(decided.Actions) == 0 && counts.Replicas == len(left.Pods)
}
