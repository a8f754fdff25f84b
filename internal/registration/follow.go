// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Somebody else writes the entries of some registries. No event tells when they change, so they are asked again and
// again while a Pod waits, and the APIs of clouds have limits that all clients of an account share. So each target
// is asked every two seconds at most, less often while nothing changes there, and each Registry is asked a few times
// a second for all of its targets.

const (
	// A target that has not changed for a while is asked again after the calmPart of that, and after maxFollow at
	// the latest; so is one that could not be listed.
	calmPart  = 4
	maxFollow = 10 * time.Second
)

// maxRecalled bounds how many entries are kept of a target between passes: those of a target group are fewer.
const maxRecalled = 2000

// followed is what a target listed last, since when it lists that, and when it may be asked again.
type followed struct {
	// listing is nil if it is not known.
	listing      *plan.Listing
	since, again time.Time
	// reserved means that its turn comes then.
	reserved bool
}

// follows reports whether somebody else writes the entries of a target.
func (o *observation) follows(target plan.Target) bool {
	return o.snapshot.Registries[target.Registry].Follows
}

// askOrRecall returns the targets that may be asked now. Of the others it returns what they listed last, and when they
// may be asked again: a pass follows then if somebody still waits.
func (r *Reconciler) askOrRecall(o *observation, targets []plan.Target) (
	reserved *observation, ask []plan.Target, recalled map[plan.Target]plan.Listing, stale map[plan.Target]plan.Followed,
) {
	recalled, stale = map[plan.Target]plan.Listing{}, map[plan.Target]plan.Followed{}
	learned, now := o.learned, r.clock.Now()
	learned.followed = cloned(learned.followed)
	for _, target := range targets {
		if !o.follows(target) {
			ask = append(ask, target)
			continue
		}
		last := learned.followed[target]
		if !now.Before(last.again) && !last.reserved {
			last.again, last.reserved = r.pool.Reserve(target.Registry, now), true
			learned.followed[target] = last
		}
		if !now.Before(last.again) {
			ask = append(ask, target)
			continue
		}
		stale[target] = plan.Followed{Again: last.again, Stale: true}
		if last.listing != nil {
			recalled[target] = *last.listing
		}
	}
	return o.knowing(learned), ask, recalled, stale
}

// follow keeps what the targets have just listed, until they may be asked again. A registry that does not answer has a
// back-off of its own. It adds when they may be asked again to what is known of the others.
func (o *observation) follow(
	targets []plan.Target, listings map[plan.Target]plan.Listing, others map[plan.Target]plan.Followed, now time.Time,
) (next *observation, followed map[plan.Target]plan.Followed) {
	learned := o.learned
	learned.followed, followed = cloned(learned.followed), cloned(others)
	for _, target := range targets {
		listing, listed := listings[target]
		switch {
		case !o.follows(target):
		case !listed, listing.Err != nil && !errors.Is(listing.Err, registry.ErrOneService):
			delete(learned.followed, target)
		default:
			last := learned.followed[target].next(listing, now)
			learned.followed[target], followed[target] = last, plan.Followed{Again: last.again}
		}
	}
	return o.knowing(learned), followed
}

// cloned is a copy to write to.
func cloned[K comparable, V any](all map[K]V) map[K]V {
	next := make(map[K]V, len(all))
	maps.Copy(next, all)
	return next
}

// next is what is kept of a new listing.
func (f followed) next(listing plan.Listing, now time.Time) followed {
	next := followed{since: now}
	if f.listing != nil && sameListing(*f.listing, listing) {
		next.since = f.since
	}
	next.again = now.Add(min(max(now.Sub(next.since)/calmPart, plan.FollowEvery), maxFollow))
	if listing.Err != nil {
		next.again = now.Add(maxFollow)
	}
	if len(listing.Entries) <= maxRecalled {
		next.listing = &listing
	}
	return next
}

// sameListing reports whether a target lists the same as before.
func sameListing(a, b plan.Listing) bool {
	return (a.Err == nil) == (b.Err == nil) && slices.EqualFunc(a.Entries, b.Entries, func(a, b registry.Entry) bool {
		return a.Version == b.Version && a.Same(b)
	})
}
