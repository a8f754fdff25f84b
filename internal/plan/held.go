// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"time"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/lifecycle"
)

// Held lists the Pods that wait at a gate, or in an update for a container,
// longest first: those of a snapshot as a pass left it. While a pass is being planned, Plan.Blocked tells.
func Held(s *Snapshot) []Blocked {
	if s.Deleting {
		return nil
	}
	var out []Blocked
	for _, pod := range s.Pods {
		var v podView
		s.read(&v, pod)
		if v.terminate {
			continue
		}
		if keys := lifecycle.Waiting(v.lifecycle(), s.Spec.Hooks); len(keys) > 0 {
			out = append(out, v.blocked(keys))
		} else if batch := v.waitsForBatch(s.Now); batch != nil {
			out = append(out, Blocked{Pod: pod.Name, State: v.state, Since: batch.Since, Batch: batch})
		}
	}
	slices.SortStableFunc(out, byWait)
	return out
}

// waitsForBatch tells which containers an update waits for before it goes on to
// those of a lower launch priority; nil if it waits for none.
func (p *podView) waitsForBatch(now time.Time) *Batch {
	if !p.unfinished() || p.pending || p.state != apps.StateUpdating {
		return nil
	}
	waits, next := p.record.Waits(p.pod, now), p.record.Pending(p.pod)
	if len(waits) == 0 || len(next) == 0 {
		return nil
	}
	return &Batch{Containers: waits, Next: next, Since: p.record.BatchSince()}
}

func (p *podView) blocked(keys []string) Blocked {
	return Blocked{Pod: p.pod.Name, Gate: lifecycle.Gate(p.state), State: p.state, Keys: keys, Since: since(p.pod)}
}

func byWait(a, b Blocked) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Pod, b.Pod)) }
