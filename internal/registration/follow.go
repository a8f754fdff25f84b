// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Somebody else writes the entries of some registries. No event tells when they change, so they are asked again and
// again while a Pod waits, and the APIs of clouds have limits that all clients of an account share. So each target
// is asked every two seconds at most, less often while nothing changes there, and each Registry is asked a few times
// a second for all of its targets.

const (
	// listingsPerSecond and listingsBurst bound how often a Registry is asked, for all targets.
	listingsPerSecond = rate.Limit(4)
	listingsBurst     = 8
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
func (p *pass) follows(target plan.Target) bool {
	return p.snapshot.Registries[target.Registry].Follows
}

// askOrRecall returns the targets that may be asked now. Of the others, the snapshot gets what they listed last.
func (p *pass) askOrRecall(targets []plan.Target) []plan.Target {
	return list.Only(targets, func(target plan.Target) bool { return !p.follows(target) || p.mayAsk(target) })
}

// mayAsk reports whether it is the turn of a target. If it is not, a pass follows then if somebody still waits.
func (p *pass) mayAsk(target plan.Target) bool {
	now, last := p.clock.Now(), p.notes.followed[target]
	if !now.Before(last.again) && !last.reserved {
		last.again, last.reserved = p.pool.turn(target.Registry, now), true
		p.notes.followed[target] = last
	}
	if !now.Before(last.again) {
		return true
	}
	p.snapshot.Followed[target] = plan.Followed{Again: last.again, Stale: true}
	if last.listing != nil {
		p.snapshot.Listings[target] = *last.listing
	}
	return false
}

// turn is when a Registry may be asked for one more listing. Turns come in the order in which they are asked for.
func (p *pool) turn(name string, now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Add(p.state(name).listings.ReserveN(now, 1).DelayFrom(now))
}

// noteFollowed keeps what the targets have just listed, until they may be asked again. A registry that does not
// answer has a back-off of its own.
func (p *pass) noteFollowed(targets []plan.Target) {
	for _, target := range targets {
		listing, listed := p.snapshot.Listings[target]
		switch {
		case !p.follows(target):
		case !listed, listing.Err != nil && !errors.Is(listing.Err, registry.ErrOneService):
			delete(p.notes.followed, target)
		default:
			next := p.notes.followed[target].next(listing, p.snapshot.Now)
			p.notes.followed[target] = next
			p.snapshot.Followed[target] = plan.Followed{Again: next.again}
		}
	}
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
