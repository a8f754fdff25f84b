// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
)

// blocked returns what a Pod waits for after a pass.
func (s *Snapshot) blocked(v *podState) []Blocked {
	switch {
	case v.terminate || s.Deletion == LetGo:
		return nil
	case !s.Deferred[v.pod.UID].Since.IsZero():
		return s.deferred(v)
	case s.Deletion == Drain:
		return v.departing(s.Spec.Hooks)
	}
	return v.wait(lifecycle.Waiting(v.lifecycle(), s.Spec.Hooks), v.waitsForBatch(s.Now))
}

// waitsForBatch returns the containers that an update waits for before it continues with
// those of a lower launch priority; nil if it waits for none.
func (p *podState) waitsForBatch(now time.Time) *Batch {
	if !p.unfinished() || p.pending || p.state != apps.StateUpdating {
		return nil
	}
	waits, next := p.record.Waits(p.pod, now), p.record.Pending(p.pod)
	if len(waits) == 0 || len(next) == 0 {
		return nil
	}
	return &Batch{Containers: waits, Next: next, Since: p.record.BatchSince()}
}

// wait returns what the Pod waits for: the keys of a hook, containers of a higher launch
// priority, or a stuck container; nothing if it does not wait. A Pod with a stuck
// container may wait at a gate that only a ready Pod passes: then blame the container,
// not the hook.
func (p *podState) wait(keys []string, batch *Batch) []Blocked {
	stuck := p.stuck()
	switch {
	case len(keys) == 0 && batch != nil:
		return []Blocked{{Pod: p.pod.Name, State: p.state, Since: batch.Since, Batch: batch}}
	case stuck != nil:
		return []Blocked{*stuck}
	case len(keys) > 0:
		return []Blocked{{Pod: p.pod.Name, Gate: lifecycle.Gate(p.state), State: p.state, Keys: keys, Since: reachedState(p.pod)}}
	}
	return nil
}

func byWait(a, b Blocked) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Pod, b.Pod)) }

// GateDeletion stands for a gate where a Pod waits until the API server lets it be deleted.
const GateDeletion = "deletion"

// keyTooManyRequests is the API server's reason for a deferred deletion.
const keyTooManyRequests = "TooManyRequests"

// Deferral is a deletion that the API server answered with 429: an admission webhook, such
// as Usher's guard, asks to try again later.
type Deferral struct {
	// Since is when the first of these answers came, Until when to try again.
	Since, Until time.Time
	// Message is the API server's.
	Message string
}

// deferred is the wait of a Pod whose deletion the API server has deferred.
func (s *Snapshot) deferred(v *podState) []Blocked {
	d := s.Deferred[v.pod.UID]
	return []Blocked{{Pod: v.pod.Name, Gate: GateDeletion, State: v.state, Keys: []string{keyTooManyRequests}, Since: d.Since, Deferral: &d}}
}

func (d *Deferral) text(pod string) string {
	return fmt.Sprintf("Pod %s is to be deleted, and the API server asks to wait%s: %s", pod, since("", d.Since), strings.TrimSuffix(d.Message, "."))
}
