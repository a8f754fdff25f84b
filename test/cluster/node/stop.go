// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"
)

// minimumGrace is the time between SIGTERM and SIGKILL that a container gets even if
// its preStop hook used up the grace period; a kubelet's value.
const minimumGrace = 2 * time.Second

// halt is an ongoing stop of one instance: preStop hook, SIGTERM, SIGKILL.
type halt struct {
	sleepsTo  time.Time // the preStop hook
	deadline  time.Time // SIGKILL
	killFloor time.Time // the deadline cannot be moved before this
	signalled bool      // SIGTERM is sent
	fresh     bool      // the container restarts because its definition changed
}

// stop starts the stop of a running instance.
func (p *pod) stop(c *container, now, deadline time.Time) {
	c.halt = &halt{sleepsTo: now, deadline: deadline}
	if hooks := c.spec.Lifecycle; hooks != nil && hooks.PreStop != nil && hooks.PreStop.Sleep != nil {
		c.halt.sleepsTo = now.Add(time.Duration(hooks.PreStop.Sleep.Seconds) * time.Second)
	}
}

// advance advances a stop as far as possible now.
func (p *pod) advance(c *container, now time.Time) {
	h := c.halt
	if !h.signalled {
		if signal := earlier(h.sleepsTo, h.deadline); now.Before(signal) {
			p.wake(signal)
			return
		}
		h.signalled = true
		h.killFloor = now.Add(minimumGrace)
		h.deadline = later(h.deadline, h.killFloor)
		c.instance.Terminate()
	}
	if now.Before(h.deadline) {
		p.wake(h.deadline)
		return
	}
	c.instance.Kill()
}

// termination is an ongoing end of a Pod.
type termination struct {
	grace    time.Duration // as last asked for
	deadline time.Time     // SIGKILL
	stopAt   time.Time     // earliest end of a container
}

// terminate ends the Pod's containers within the grace period of its deletion. Another
// deletion with a shorter grace period shortens it.
func (p *pod) terminate(now time.Time) {
	grace := p.grace(p.object.DeletionGracePeriodSeconds)
	switch t := p.termination; {
	case t == nil:
		p.termination = &termination{grace: grace, deadline: now.Add(grace), stopAt: now.Add(p.traits.DeleteDelay)}
		p.unready = true
	case grace < t.grace:
		t.grace, t.deadline = grace, earlier(t.deadline, now.Add(grace))
	}
	t := p.termination
	if begin := earlier(t.stopAt, t.deadline); now.Before(begin) {
		p.wake(begin)
		return
	}
	p.down = p.stopAll(now, t.deadline)
}

// stopAll advances the stop of every running container. It returns true if nothing runs
// any more.
func (p *pod) stopAll(now, deadline time.Time) bool {
	down := true
	for _, c := range p.containers {
		if c.instance == nil {
			c.waiting = nil // it no longer waits for a start
			continue
		}
		if p.reap(c, now) {
			continue
		}
		if c.halt == nil {
			p.stop(c, now, deadline)
		}
		c.halt.deadline = earlier(c.halt.deadline, later(deadline, c.halt.killFloor))
		p.advance(c, now)
		down = p.reap(c, now) && down
	}
	return down
}

// killAll kills what is left of a Pod whose object is gone. It returns true if nothing
// runs any more.
func (p *pod) killAll(now time.Time) bool {
	down := true
	for _, c := range p.containers {
		if c.instance != nil {
			c.instance.Kill()
			down = p.reap(c, now) && down
		}
	}
	return down
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
