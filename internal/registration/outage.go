// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// reachability is what this process knows of when a registry answered.
type reachability struct {
	// recalled means that what earlier processes knew is in here.
	recalled bool
	// answered is when it last did; zero if nobody knows.
	answered time.Time
	outage   plan.Outage
}

func (s *reachability) away() bool { return s.outage != (plan.Outage{}) && s.outage.To.IsZero() }

// reachabilityOf is what an earlier process left in the status of a Registry. One that left
// nothing may have met an outage all the same: it began after the Registry was created.
func reachabilityOf(object *usherv1alpha1.Registry) reachability {
	s, status := reachability{recalled: true, answered: object.CreationTimestamp.Time}, object.Status
	if o := status.LastOutage; o != nil {
		s.outage, s.answered = plan.Outage{From: o.From.Time, Recalled: true}, o.From.Time
		if o.To != nil {
			s.outage.To, s.answered = o.To.Time, o.To.Time
		}
	}
	c := meta.FindStatusCondition(status.Conditions, usherv1alpha1.ConditionReachable)
	if c != nil && c.Status == metav1.ConditionTrue && c.LastTransitionTime.After(s.answered) {
		s.answered = c.LastTransitionTime.Time
	}
	s.answered = s.answered.Add(-plan.MaxSkew) // by another clock
	return s
}

// noteCall notes whether a registry answered. One that refuses us answers others.
func (p *pool) noteCall(ctx context.Context, name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	s := &p.state(name).reachability
	s.recalled = true
	switch {
	case err == nil:
		if s.away() {
			s.outage = s.outage.Ended(now)
		}
		s.answered = now
	case s.away() || errors.Is(err, registry.ErrPermanent) || !isOutage(ctx, err):
	default:
		s.outage = s.outage.Next(cmp.Or(s.answered, now))
	}
}

// outage returns the last outage of a registry.
func (p *pool) outage(name string) plan.Outage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state(name).outage
}

// recall takes over what earlier processes knew of a registry. It reads from the API server,
// because a cache may not show their last write.
func (r *Reconciler) recall(ctx context.Context, name string) error {
	r.pool.mu.Lock()
	known := r.pool.state(name).recalled
	r.pool.mu.Unlock()
	if known {
		return nil
	}
	live, err := read[usherv1alpha1.Registry](ctx, r.reader, "the last outage of Registry", types.NamespacedName{Name: name})
	if err != nil || live == nil {
		return err
	}
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	if s := r.pool.state(name); !s.recalled {
		s.reachability = reachabilityOf(live)
	}
	return nil
}

// noticeOutages puts the outages that the last calls found into the snapshot.
func (p *pass) noticeOutages() {
	for name, state := range p.snapshot.Registries {
		state.Outage = p.pool.outage(name)
		p.snapshot.Registries[name] = state
	}
}
