// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"slices"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registries"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// sweeps is what is known of orphans. Nobody changes it: each change is another value.
type sweeps struct {
	// swept is when a target's orphans were last looked for.
	swept map[plan.Target]time.Time
	// suspects are the orphans that the last sweep of a target has found and left, by entry ID.
	suspects map[plan.Target]map[string]bool
	// remaining is how many orphans the last sweep of a target has left there.
	remaining map[plan.Target]int
}

// of keeps what is known of these targets. Nobody sweeps another one again: its orphans would be counted, and what is
// known of it kept, as long as Usher runs. A target that comes back is swept at once, as a new one is.
func (s sweeps) of(known map[plan.Target]bool) sweeps {
	return sweeps{onlyOf(s.swept, known), onlyOf(s.suspects, known), onlyOf(s.remaining, known)}
}

// onlyOf are the values of these targets.
func onlyOf[V any](all map[plan.Target]V, known map[plan.Target]bool) map[plan.Target]V {
	kept := map[plan.Target]V{}
	for target, value := range all {
		if known[target] {
			kept[target] = value
		}
	}
	return kept
}

// sweptOf are the changes whose sweep is over: all the orphans that it removes had their turn. With a rate limit, the
// next pass goes on with the others.
func (o *observation) sweptOf(changes []plan.Changes) []plan.Changes {
	return list.Only(changes, func(c plan.Changes) bool {
		return c.Swept && !slices.ContainsFunc(c.Orphans, func(change registry.Change) bool {
			return errors.Is(o.snapshot.Failed[c.Target][change.Entry.ID], plan.ErrRateLimited)
		})
	})
}

// after is what is known after these sweeps.
func (s sweeps) after(done []plan.Changes, now time.Time) sweeps {
	if len(done) == 0 {
		return s
	}
	next := sweeps{cloned(s.swept), cloned(s.suspects), cloned(s.remaining)}
	for _, c := range done {
		next.swept[c.Target], next.suspects[c.Target], next.remaining[c.Target] = now, c.Suspects, len(c.Suspects)-len(c.Orphans)
	}
	return next
}

// sweepsDue are the targets that are swept now, and when the next sweep is due.
func (o *observation) sweepsDue(targets []plan.Target, now time.Time) (due map[plan.Target]bool, next time.Time) {
	due = map[plan.Target]bool{}
	for _, target := range targets {
		object := o.objects[target.Registry]
		if object == nil || o.follows(target) { // nobody else's entries are orphans
			continue
		}
		at := o.sweeps.swept[target].Add(registries.RepairOf(object))
		if !now.Before(at) {
			due[target] = true
			at = now.Add(registries.RepairOf(object))
		}
		next = list.Earliest(next, at)
	}
	return due, next
}

// reportOrphans shows how many orphans the last sweeps have left in each registry.
func (r *Reconciler) reportOrphans(namespace string, before, after sweeps) {
	for target := range before.swept {
		if _, known := after.swept[target]; !known {
			r.metrics.orphans.DeleteLabelValues(namespace, target.Registry)
		}
	}
	remaining := map[string]int{}
	for target, entries := range after.remaining {
		remaining[target.Registry] += entries
	}
	for name, entries := range remaining {
		r.metrics.orphans.WithLabelValues(namespace, name).Set(float64(entries))
	}
}
