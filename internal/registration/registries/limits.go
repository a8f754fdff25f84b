// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/ptr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// ListingsPerSecond and ListingsBurst bound how often a Registry is asked whose entries somebody else writes, for
// all of its targets.
const (
	ListingsPerSecond = rate.Limit(4)
	ListingsBurst     = 8
)

// Limiter returns what bounds the changes of a Registry, by its spec.rateLimit; nil if it has no limit. A changed limit
// starts over.
func (p *Pool) Limiter(r *usherv1alpha1.Registry) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.open(r.Name)
	if r.Spec.RateLimit == nil {
		s.turns = nil
		return nil
	}
	spec := r.Spec.RateLimit
	limit, burst := rate.Limit(spec.ChangesPerSecond), int(ptr.Deref(spec.Burst, spec.ChangesPerSecond))
	if s.turns == nil || s.turns.Limit() != limit || s.turns.Burst() != burst {
		s.turns = rate.NewLimiter(limit, burst)
	}
	return s.turns
}

// Reserve takes the next turn: when a Registry may be asked for one more listing. Turns come in the order of the
// requests.
func (p *Pool) Reserve(name string, now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Add(p.open(name).listings.ReserveN(now, 1).DelayFrom(now))
}
