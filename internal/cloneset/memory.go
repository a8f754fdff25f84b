// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// memory is what the passes over a set remember. Passes over one set never overlap, so a
// pass may change it.
type memory struct {
	// refusal and claimRefusal are those of the Pod template and of the claim templates.
	refusal, claimRefusal refusal
	// reported is the wait of the last event.
	reported string
	rollout  rolloutLog
	// podInfos are what the last pass read of the Pods, as it left them, so that the next
	// pass reads only Pods that have changed. An idle set has none.
	podInfos []*plan.PodInfo
	// deferrals are the deletions that the API server has deferred.
	deferrals deferrals
}

// memory returns what is remembered of a set, by name.
func (r *Reconciler) memory(set types.NamespacedName) *memory {
	value, _ := r.memories.LoadOrStore(set, &memory{})
	return value.(*memory)
}
