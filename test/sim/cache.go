// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/model"
)

// Lag is how long a watch takes to deliver an event, drawn separately for each event.
type Lag struct {
	Least, Most time.Duration
	// Stall is the probability that the watch hangs for StallFor. When it comes back,
	// it may deliver only the last state of each object, as after a relist.
	Stall    float64
	StallFor time.Duration
}

// watch keeps one process's cache of the objects of one kind up to date, with delays.
type watch struct {
	*model.Cache
	world *World
	lag   Lag
	// due is when the latest planned delivery happens: watches preserve the order.
	due time.Time
	// handlerDue is when the latest event reaches its handler.
	handlerDue time.Time
	// stopped is true once the process has ended.
	stopped bool
}

// plan plans the delivery of the log up to a position.
func (c *watch) plan(upTo int) {
	if c.stopped {
		return
	}
	at := c.world.now().Add(c.world.between(c.lag.Least, c.lag.Most))
	relist := false
	if c.world.roll(c.lag.Stall) {
		at = at.Add(c.world.between(0, c.lag.StallFor))
		relist = c.world.roll(0.5)
	}
	if at.Before(c.due) {
		at = c.due
	}
	c.due = at
	c.world.after(at.Sub(c.world.now()), func() {
		switch {
		case c.stopped:
		case relist:
			c.Relist()
		default:
			c.Deliver(upTo)
		}
	})
}

// later passes an event from a cache to its handler, which runs on its own.
func (p *Process) later(kind model.Kind, before, after client.Object) {
	c := p.caches[kind]
	at := p.world.now().Add(p.world.between(0, time.Millisecond))
	if at.Before(c.handlerDue) {
		at = c.handlerDue
	}
	c.handlerDue = at
	p.world.after(at.Sub(p.world.now()), func() {
		if !p.dead {
			p.handle(kind, before, after)
		}
	})
}
