// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/registration/plan"
)

const (
	// refusalMin and refusalMax bound the back-off of a Pod's keys that the API server refuses.
	refusalMin = time.Second
	refusalMax = time.Minute
	// maxRefusal bounds what a refusal says, in bytes.
	maxRefusal = 512
)

// refusal is an answer to a write of keys of users' choice, and how long Usher waits after it.
type refusal struct {
	plan.Refusal
	wait time.Duration
}

// refusal returns what is known of keys of a Pod after the API server has refused them. That ends no pass and holds up
// no other Pod: the next pass reports it, and one after the back-off tries again.
func (r *Reconciler) refusal(before refusal, keys []string, err error) refusal {
	wait := min(max(2*before.wait, refusalMin), refusalMax)
	return refusal{
		Refusal: plan.Refusal{Keys: keys, Message: plan.Shorten(err.Error(), maxRefusal), Until: r.clock.Now().Add(wait)},
		wait:    wait,
	}
}

// refusalsOf are those of the Pods that there are.
func refusalsOf(refusals map[types.UID]refusal, pods []*corev1.Pod) map[types.UID]plan.Refusal {
	if len(refusals) == 0 {
		return nil
	}
	known := map[types.UID]plan.Refusal{}
	for _, pod := range pods {
		if r, ok := refusals[pod.UID]; ok {
			known[pod.UID] = r.Refusal
		}
	}
	return known
}

// refusalsAfter are those that the next pass knows: of Pods that there are, without those whose keys have been written
// since.
func refusalsAfter(refusals map[types.UID]refusal, before *observation, patches []patchResult) map[types.UID]refusal {
	after := map[types.UID]refusal{}
	for pod, r := range refusals {
		if _, there := before.snapshot.Refusals[pod]; there {
			after[pod] = r
		}
	}
	for _, p := range patches {
		uid := p.patch.Pod.UID
		switch {
		case p.keys != nil:
			after[uid] = *p.keys
		case slices.ContainsFunc(p.sent, func(part *plan.PodPatch) bool { return len(part.Chosen()) > 0 }):
			delete(after, uid)
		}
	}
	return after
}
