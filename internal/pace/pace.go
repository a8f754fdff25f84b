// SPDX-License-Identifier: Apache-2.0

// Package pace says when the next pass over something may begin, for both halves. A pass costs about as much
// whether one object has changed or a thousand. Without a pause, passes would follow each other, each with next to
// nothing to do.
package pace

import (
	"sync"
	"time"
)

// Pace is when the next pass may begin. The zero Pace lets it begin at once. Passes and event handlers may call its
// methods at the same time.
type Pace struct {
	// Slack is the longest wait that is not worth a timer: the pass begins at once instead.
	Slack time.Duration

	mu sync.Mutex
	// next is when the next pass may begin, soonest when it may begin if it is urgent.
	next, soonest time.Time
	urgent        bool
}

// Begin returns how long the next pass has to wait. If that is zero the pass begins, and takes care of what was urgent.
func (p *Pace) Begin(now time.Time) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.next
	if p.urgent {
		next = p.soonest
	}
	if wait = next.Sub(now); wait > p.Slack {
		return wait
	}
	p.urgent = false
	return 0
}

// Rest ends a pass: the next one begins no earlier than next or, if it is urgent, than soonest.
func (p *Pace) Rest(next, soonest time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.soonest = next, soonest
}

// Reset ends a pass after which there is no pause.
func (p *Pace) Reset() { p.Rest(time.Time{}, time.Time{}) }

// Hurry makes the next pass urgent. A pass that has begun learns of that, too.
func (p *Pace) Hurry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.urgent = true
}

// Urgent reports whether something urgent has happened since the last pass began.
func (p *Pace) Urgent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.urgent
}

// Idle reports whether nothing would be lost with the Pace: no pause is left, and nothing is urgent.
func (p *Pace) Idle(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next.Before(now) && !p.urgent
}
