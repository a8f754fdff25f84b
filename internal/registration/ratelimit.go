// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/ptr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// limiter returns the limiter of a Registry, nil if it has no limit. A changed limit starts
// over.
func (p *pool) limiter(r *usherv1alpha1.Registry) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.state(r.Name)
	if r.Spec.RateLimit == nil {
		s.turns = nil
		return nil
	}
	limit, burst := rate.Limit(r.Spec.RateLimit.ChangesPerSecond), int(ptr.Deref(r.Spec.RateLimit.Burst, r.Spec.RateLimit.ChangesPerSecond))
	if s.turns == nil || s.turns.Limit() != limit || s.turns.Burst() != burst {
		s.turns = rate.NewLimiter(limit, burst)
	}
	return s.turns
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
