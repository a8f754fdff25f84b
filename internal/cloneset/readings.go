// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// readings keep what the last pass read of a set's Pods, as it left them, so that the
// next pass reads only Pods that have changed. A set at rest has none: they would retain
// Pod versions that the cache no longer holds.
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

// keep stores the readings of a set, unless it is at rest.
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

// atRest reports whether a pass had nothing to do and nothing is outstanding: no Pod is
// terminating either.
func atRest(counts plan.Counts, decided *plan.Plan, left *plan.Snapshot) bool {
	return counts.RolledOut && len(decided.Actions) == 0 && counts.Replicas == len(left.Pods)
}
