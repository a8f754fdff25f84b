// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// RecordCall records whether a registry answered. One that refuses us answers others.
func (p *Pool) RecordCall(ctx context.Context, name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	s := &p.open(name).reachability
	s.recalled = true
	switch {
	case err == nil:
		if s.away() {
			s.outage = s.outage.Ended(now)
		}
		s.answered = now
	case s.away() || errors.Is(err, registry.ErrPermanent) || !IsOutage(ctx, err):
	default:
		s.outage = s.outage.Next(cmp.Or(s.answered, now))
	}
}

// Outage returns the last outage of a registry.
func (p *Pool) Outage(name string) plan.Outage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open(name).outage
}

// Recall takes over what earlier processes knew of a registry. It reads from the API server,
// because a cache may not show their last write.
func (p *Pool) Recall(ctx context.Context, name string) error {
	p.mu.Lock()
	known := p.open(name).recalled
	p.mu.Unlock()
	if known {
		return nil
	}
	live := &usherv1alpha1.Registry{}
	if err := p.reader.Get(ctx, types.NamespacedName{Name: name}, live); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("read the last outage of Registry %s: %w", name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.open(name); !s.recalled {
		s.reachability = reachabilityOf(live)
	}
	return nil
}
