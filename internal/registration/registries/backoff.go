// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"context"
	"errors"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

const (
	// minBackOff and maxBackOff bound how long a registry that failed is not called; each
	// failure doubles it.
	minBackOff = time.Second
	maxBackOff = 30 * time.Second
	// calm is how long a registry must work before its back-off starts over.
	calm = time.Minute
	// probeSlack is the part of Slack that is the same for all registries.
	probeSlack = time.Second
)

// backOff is why, and until when, passes do not call a registry that failed.
type backOff struct {
	err      error
	last     time.Time
	until    time.Time
	failures int
}

// Down returns until when and why a registry is not called; a nil error if it is.
func (p *Pool) Down(name string) (until time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.open(name); p.clock.Now().Before(s.until) {
		return s.until, s.err
	}
	return time.Time{}, nil
}

// Slack is how much longer passes leave a registry alone than probes do: no Pod waits for a probe, so it should be the
// first to call, and to have its answer.
func Slack(object *usherv1alpha1.Registry) time.Duration { return TimeoutOf(object) + probeSlack }

// BeginBackOff begins or lengthens the back-off of a registry that has failed. It returns in how long the next probe is
// due, and whether the registry had answered before. Passes stay away longer, by Slack.
func (p *Pool) BeginBackOff(object *usherv1alpha1.Registry, err error) (back time.Duration, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	o := &p.open(object.Name).backOff
	if now.Sub(o.last) > calm+maxBackOff {
		o.failures = 0
	}
	first = o.until.IsZero()
	back = min(minBackOff<<min(o.failures, 10), maxBackOff)
	o.failures++
	o.err, o.last, o.until = err, now, now.Add(back+Slack(object))
	return back, first
}

// EndBackOff ends a back-off, and reports whether there was one. A registry that failed
// lately keeps its count, so that one that fails for one service only is not called ever
// faster.
func (p *Pool) EndBackOff(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := &p.open(name).backOff
	ended := !o.until.IsZero()
	o.until = time.Time{}
	if p.clock.Now().Sub(o.last) > calm {
		*o = backOff{}
	}
	return ended
}

// IsOutage reports whether an error concerns the registry as a whole, and is not the end of
// the pass itself.
func IsOutage(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled)
}
