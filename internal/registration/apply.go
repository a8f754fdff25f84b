// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/ptr"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// maxCalls bounds the calls to registries that one pass has in flight.
	maxCalls = 16
	// maxBatch bounds the changes of one call to a registry: the time-out is for a call, however
	// many Pods change together, and a registry that has lost all entries gets thousands again.
	maxBatch = 500
	// refusedRetry is when a change that a registry refused is tried again.
	refusedRetry = 10 * time.Second
)

// apply sends one batch to each target.
func (p *pass) apply(ctx context.Context, changes []plan.Changes) {
	later := make([]map[string]error, len(changes))
	for i, c := range changes { // before the first call: both touch the pass
		changes[i], later[i] = p.inTurn(c)
		p.notes.dirty[c.Target] = true
	}
	failures := registry.Each(ctx, len(changes), min(p.options.Workers, maxCalls), func(i int) error {
		if changes[i].Empty() {
			return nil
		}
		return p.applyOne(ctx, changes[i])
	})
	for i, c := range changes {
		failed, rest := registry.ChangeErrors(failures[i])
		p.countRefused(c.Target.Registry, failed, rest)
		if rest != nil {
			failed[""] = rest
		} else {
			p.metrics.removed.WithLabelValues(c.Target.Registry).Add(float64(len(c.Orphans)))
		}
		if len(failed) > 0 {
			p.again(refusedRetry)
		}
		maps.Copy(failed, later[i])
		if len(failed) > 0 {
			p.snapshot.Failed[c.Target] = failed
		}
	}
}

// countRefused counts what a registry refused. Conflicts are no errors, and outages are
// counted where they are noticed.
func (p *pass) countRefused(name string, refused map[string]error, rest error) {
	if errors.Is(rest, registry.ErrPermanent) {
		p.metrics.failed(name, rest)
	}
	for _, err := range refused {
		if errors.Is(err, registry.ErrPermanent) || errors.Is(err, registry.ErrForeign) {
			p.metrics.failed(name, registry.Permanent(err))
		}
	}
}

// registryFailed begins a back-off: other passes do not wait for the registry, and the probe
// finds out when it is back.
func (p *pass) registryFailed(ctx context.Context, object *usherv1alpha1.Registry, err error) {
	if !isOutage(ctx, err) {
		return
	}
	back := p.backOff(ctx, object, err)
	enqueueRegistry(p.probes, object)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.again(back + timeoutOf(object) + probeSlack)
}

// applyOne makes the changes of a target, batch by batch, until one fails as a whole. It
// returns the refusals of all of them.
func (p *pass) applyOne(ctx context.Context, c plan.Changes) error {
	object := p.objects[c.Target.Registry]
	conn, err := p.pool.get(ctx, object, c.Target.Prefix, false)
	if err != nil {
		return err
	}
	var errs []error
	for batch := range slices.Chunk(slices.Concat(c.Leaves, c.Orphans, c.Joins), maxBatch) {
		err := conn.Apply(ctx, c.Target.Service, batch)
		errs = append(errs, err)
		_, rest := registry.ChangeErrors(err)
		if errors.Is(rest, registry.ErrTransient) && !errors.Is(rest, registry.ErrOneService) {
			p.registryFailed(ctx, object, rest)
		}
		if rest != nil {
			break
		}
	}
	return errors.Join(errs...)
}

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
	limiter := p.pool.limiter(p.objects[c.Target.Registry])
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
