// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"
)

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
		p.termination = &termination{
			grace: grace, deadline: now.Add(grace), stopAt: now.Add(p.runtime.Delay(DelayDelete, p.object)),
		}
		p.unready = !p.readyUntilStopped
	case grace < t.grace:
		t.grace = grace
		t.deadline = earlier(t.deadline, now.Add(grace))
	}
	t := p.termination
	if now.Before(t.stopAt) && now.Before(t.deadline) {
		p.wake(earlier(t.stopAt, t.deadline))
		return
	}
	p.down = p.stopAll(now, t.deadline)
}

// stopAll advances the stop of every running container. Containers stop independently
// except sidecars, which get SIGTERM once the main containers and the sidecars after
// them are gone. It returns true if nothing runs any more.
func (p *pod) stopAll(now, deadline time.Time) bool {
	// From last to first, so that a sidecar sees the result of those that it waits for.
	down := true
	for i := len(p.containers) - 1; i >= 0; i-- {
		c := p.containers[i]
		if c.instance == nil {
			c.waiting = nil // it no longer waits for a start
			continue
		}
		if p.reap(c, now) {
			continue
		}
		if c.halt == nil {
			p.stop(c, p.spec(i), now, haltCause{deadline: deadline, message: "Stopping container " + c.name})
		}
		c.halt.deadline = earlier(c.halt.deadline, later(deadline, c.halt.killFloor))
		p.advance(c, now, c.role != roleSidecar || down)
		down = p.reap(c, now) && down
	}
	return down
}

// killAll kills what is left of a Pod whose object is gone.
func (p *pod) killAll(now time.Time) {
	p.down = true
	for _, c := range p.containers {
		if c.instance == nil || p.reap(c, now) {
			continue
		}
		c.instance.Kill()
		p.down = p.reap(c, now) && p.down
	}
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
