// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"time"

	"github.com/usher-dev/usher/internal/registration/plan"
)

const (
	// restFactor is how many times as long as its own work a pass is followed by a
	// pause: passes over one namespace take a quarter of a processor at most.
	restFactor = 3
	// maxPause bounds how long Pods wait for the next pass because the last one was
	// expensive.
	maxPause = time.Second
)

// timed adds what a step took to what this pass has spent on its own work: to
// list and to plan. Waiting for the API server is none.
func (p *pass) timed(step func()) {
	began := p.clock.Now()
	step()
	p.spent += p.clock.Now().Sub(began)
}

// pause puts the next pass off. To list and to plan costs as much as the namespace
// is large, whether one Pod has changed or a thousand: without a pause passes over
// a large one follow each other without end, and each finds next to nothing to do.
// So one that took long is followed by a longer pause, in which Pods gather.
func (p *pass) pause() {
	if rest := min(restFactor*p.spent, maxPause); rest > batchDelay {
		p.notes.next = p.clock.Now().Add(rest)
	}
}

// pauseLeft is how long the next pass is put off; zero or less if it is not.
func (r *Reconciler) pauseLeft(namespace string) time.Duration {
	return r.notesOf(namespace).next.Sub(r.clock.Now())
}

func (p *pass) decide() (decided plan.Plan) {
	p.timed(func() { decided = plan.Make(p.snapshot) })
	return decided
}

func (p *pass) needs() (targets []plan.Target) {
	p.timed(func() { targets = plan.Needs(p.snapshot) })
	return targets
}
