// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"maps"
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

// refused notes a refusal, which ends no pass and holds up no other Pod: the next pass reports it, and one
// after the back-off tries again. The caller holds the lock.
func (p *pass) refused(pod types.UID, keys []string, err error) {
	before := p.notes.refusals[pod]
	wait := min(max(2*before.wait, refusalMin), refusalMax)
	p.notes.refusals[pod] = refusal{
		Refusal: plan.Refusal{Keys: keys, Message: plan.Shorten(err.Error(), maxRefusal), Until: p.clock.Now().Add(wait)},
		wait:    wait,
	}
	if before.wait == 0 {
		p.again(batchDelay)
	} else {
		p.again(wait)
	}
}

// refusalsOf are those of the Pods that there are; others are forgotten.
func (n *notes) refusalsOf(pods []*corev1.Pod) map[types.UID]plan.Refusal {
	if len(n.refusals) == 0 {
		return nil
	}
	known := map[types.UID]plan.Refusal{}
	for _, pod := range pods {
		if r, ok := n.refusals[pod.UID]; ok {
			known[pod.UID] = r.Refusal
		}
	}
	maps.DeleteFunc(n.refusals, func(pod types.UID, _ refusal) bool { _, ok := known[pod]; return !ok })
	return known
}
