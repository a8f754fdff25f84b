// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"time"

	"golang.org/x/time/rate"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// turns is how many changes a Registry takes now.
type turns struct {
	of    usherv1alpha1.RateLimit
	limit *rate.Limiter
}

// limiter returns the limiter of a Registry, nil if it has no limit. A changed limit starts
// over.
func (p *pool) limiter(r *usherv1alpha1.Registry) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.state(r.Name)
	if r.Spec.RateLimit == nil {
		s.turns = turns{}
		return nil
	}
	limit := usherv1alpha1.RateLimit{ChangesPerSecond: r.Spec.RateLimit.ChangesPerSecond}
	burst := limit.ChangesPerSecond
	if r.Spec.RateLimit.Burst != nil {
		burst = *r.Spec.RateLimit.Burst
	}
	if s.limit == nil || s.of != limit || s.limit.Burst() != int(burst) {
		s.turns = turns{of: limit, limit: rate.NewLimiter(rate.Limit(limit.ChangesPerSecond), int(burst))}
	}
	return s.limit
}

// inTurn keeps in a batch what the Registry takes now, and returns the rest by ID. Nobody
// waits: the target stays due, and another pass follows in time.
func (p *pass) inTurn(c plan.Changes) (now plan.Changes, later map[string]error) {
	object := p.objects[c.Target.Registry]
	if object == nil {
		return c, nil
	}
	limiter := p.pool.limiter(object)
	if limiter == nil {
		return c, nil
	}
	at := p.clock.Now()
	total := len(c.Leaves) + len(c.Orphans) + len(c.Joins)
	free := max(min(total, int(limiter.TokensAt(at))), 0)
	if !limiter.AllowN(at, free) {
		free = 0 // Another namespace was faster.
	}
	later = map[string]error{}
	take := func(changes []registry.Change) []registry.Change {
		n := min(free, len(changes))
		for _, change := range changes[n:] {
			later[change.Entry.ID] = plan.ErrRateLimited
		}
		free -= n
		return changes[:n:n]
	}
	c.Leaves, c.Orphans, c.Joins = take(c.Leaves), take(c.Orphans), take(c.Joins)
	if len(later) > 0 {
		soonest := min(len(later), limiter.Burst())
		p.again(time.Duration(float64(soonest) / float64(limiter.Limit()) * float64(time.Second)))
	}
	return c, later
}
