// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// DefaultAfterOutage is spec.drain.afterOutage of objects that were stored
	// without it.
	DefaultAfterOutage = 30 * time.Second
	// maxAfterOutage is its largest value: after that all callers are back.
	maxAfterOutage = 10 * time.Minute
)

// Outage is the last time that a registry did not answer; zero if none is known.
type Outage struct {
	// From is when it last answered before, as far as is known.
	From time.Time
	// To is when it answered again, zero while it does not.
	To time.Time
}

// heard is when callers know of an entry that went at gone, and whether that is
// later than propagation after it because of the outage. Callers that have lost the
// registry try again ever more seldom: one that was away for some time has them all
// back after as long again, and after reconnect at the latest. What they missed
// meanwhile they are told then. now stands for the end of an outage that goes on.
func (o Outage) heard(gone time.Time, propagation, reconnect time.Duration, now time.Time) (at time.Time, late bool) {
	if o == (Outage{}) {
		return gone.Add(propagation), false
	}
	to := o.To
	if to.IsZero() {
		to = now
	}
	back := to.Add(min(to.Sub(o.From), reconnect))
	if !back.After(gone) {
		return gone.Add(propagation), false
	}
	return back.Add(propagation), true
}

// next is the outage that begins now, where the registry last answered at from.
// Callers that have yet to come back from the one before have both behind them.
func (o Outage) next(from time.Time) Outage {
	if !o.To.IsZero() && from.Before(o.To.Add(min(o.To.Sub(o.From), maxAfterOutage))) {
		from = o.From
	}
	return Outage{From: from}
}

// String says when it was, for people.
func (o Outage) String() string {
	if o.To.IsZero() {
		return "does not answer since " + o.From.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("was away from %s to %s", o.From.UTC().Format(time.RFC3339), o.To.UTC().Format(time.RFC3339))
}

// status is the outage for Registry.status, which knows seconds only: rounded so
// that it does not look shorter.
func (o Outage) status() *usherv1alpha1.Outage {
	if o == (Outage{}) {
		return nil
	}
	told := &usherv1alpha1.Outage{From: metav1.NewTime(o.From.Truncate(time.Second))}
	if !o.To.IsZero() {
		to := metav1.NewTime(o.To.Add(time.Second - 1).Truncate(time.Second))
		told.To = &to
	}
	return told
}

// sight is what this process knows of when a registry answered.
type sight struct {
	// answered is when it last did; zero if nobody knows.
	answered time.Time
	outage   Outage
}

func (s *sight) away() bool { return s.outage != (Outage{}) && s.outage.To.IsZero() }

// sightOf is what an earlier process left in the status of a Registry.
func sightOf(status usherv1alpha1.RegistryStatus) *sight {
	s := &sight{}
	if o := status.LastOutage; o != nil {
		s.outage.From, s.answered = o.From.Time, o.From.Time
		if o.To != nil {
			s.outage.To, s.answered = o.To.Time, o.To.Time
		}
	}
	c := meta.FindStatusCondition(status.Conditions, usherv1alpha1.ConditionReachable)
	if c != nil && c.Status == metav1.ConditionTrue && c.LastTransitionTime.After(s.answered) {
		s.answered = c.LastTransitionTime.Time
	}
	return s
}

// asked notes whether a registry answered. One that refuses is there for others.
func (p *pool) asked(ctx context.Context, name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	s := p.sights[name]
	if s == nil {
		s = &sight{}
		p.sights[name] = s
	}
	switch {
	case err == nil:
		if s.away() {
			s.outage.To = now
		}
		s.answered = now
	case s.away() || errors.Is(err, registry.ErrPermanent) || !outside(ctx, err):
	case s.answered.IsZero():
		s.outage = s.outage.next(now)
	default:
		s.outage = s.outage.next(s.answered)
	}
}

// outage returns the last outage of a registry.
func (p *pool) outage(name string) Outage {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.sights[name]; s != nil {
		return s.outage
	}
	return Outage{}
}

// recall makes this process know what earlier ones saw of a registry. It asks the
// API server, since a cache may not show their last words.
func (r *reconciler) recall(ctx context.Context, name string) error {
	r.pool.mu.Lock()
	_, known := r.pool.sights[name]
	r.pool.mu.Unlock()
	if known {
		return nil
	}
	var live usherv1alpha1.Registry
	err := r.reader.Get(ctx, types.NamespacedName{Name: name}, &live)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the last outage of Registry %s: %w", name, err)
	}
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	if r.pool.sights[name] == nil {
		r.pool.sights[name] = sightOf(live.Status)
	}
	return nil
}

// noticeOutages takes what the last calls found out into the snapshot.
func (p *pass) noticeOutages() {
	for name, state := range p.snapshot.Registries {
		state.Outage = p.pool.outage(name)
		p.snapshot.Registries[name] = state
	}
}
