// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// minimumGrace is the time between SIGTERM and SIGKILL that a container gets even if
// its preStop hook used up the grace period; a kubelet's value.
const minimumGrace = 2 * time.Second

// halt is an ongoing stop of one instance: preStop hook, SIGTERM, SIGKILL.
type halt struct {
	hook      *hook     // nil if there is none
	deadline  time.Time // SIGKILL
	killFloor time.Time // the deadline cannot be moved before this
	signalled bool      // SIGTERM is sent
	fresh     bool      // the container restarts because its definition changed
}

// haltCause is a reason to stop an instance.
type haltCause struct {
	deadline time.Time
	fresh    bool
}

// stopCause is why a running container has to be stopped although its Pod continues;
// nil if it does not.
func (p *pod) stopCause(c *container, now time.Time) *haltCause {
	within := func(grace *int64) time.Time { return now.Add(p.grace(grace)) }
	switch {
	case c.image != c.spec.Image || c.restartsOnResize():
		return &haltCause{deadline: within(nil), fresh: true}
	case c.liveness == probeFailure:
		return &haltCause{deadline: within(c.spec.LivenessProbe.TerminationGracePeriodSeconds)}
	case c.startup == probeFailure:
		return &haltCause{deadline: within(c.spec.StartupProbe.TerminationGracePeriodSeconds)}
	case c.postStart != nil && c.postStart.err != nil:
		p.report(c, "The postStart hook failed", c.postStart.err)
		return &haltCause{deadline: within(nil)}
	}
	return nil
}

// stop starts the stop of a running instance.
func (p *pod) stop(c *container, now time.Time, cause haltCause) {
	c.halt = &halt{deadline: cause.deadline, fresh: cause.fresh}
	if c.spec.Lifecycle != nil && c.spec.Lifecycle.PreStop != nil && now.Before(cause.deadline) {
		c.halt.hook = p.startHook(c, c.spec.Lifecycle.PreStop, now)
	}
}

// advance advances a stop as far as possible now.
func (p *pod) advance(c *container, now time.Time) {
	h := c.halt
	if !h.signalled {
		if !h.hook.finished(now) && now.Before(h.deadline) {
			h.hook.wake(p, now)
			p.wake(h.deadline)
			return
		}
		h.hook.abort()
		if h.hook != nil && h.hook.err != nil {
			p.report(c, "The preStop hook failed", h.hook.err)
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
			p.stop(c, now, haltCause{deadline: deadline})
		}
		c.halt.deadline = earlier(c.halt.deadline, later(deadline, c.halt.killFloor))
		p.advance(c, now)
		down = p.reap(c, now) && down
	}
	return down
}

// killAll kills what is left of a Pod whose object is gone.
func (p *pod) killAll(now time.Time) {
	p.down = true
	for _, c := range p.containers {
		if c.instance != nil {
			c.instance.Kill()
			p.down = p.reap(c, now) && p.down
		}
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

// hook is a running lifecycle handler. A nil hook has finished.
type hook struct {
	until  time.Time          // of a sleep
	cancel context.CancelFunc // of anything else; nil for a sleep
	done   bool
	err    error
}

// startHook starts a lifecycle handler. Its result arrives as an update of the Pod.
func (p *pod) startHook(c *container, handler *corev1.LifecycleHandler, now time.Time) *hook {
	if sleep, ok := sleepOf(handler, p.traits.Real); ok {
		return &hook{until: now.Add(sleep)}
	}
	ctx, cancel := context.WithCancel(p.base)
	h := &hook{cancel: cancel}
	run := p.action(c, corev1.ProbeHandler{Exec: handler.Exec, HTTPGet: handler.HTTPGet, TCPSocket: handler.TCPSocket})
	go func() {
		err := run(ctx)
		// As with a kubelet, any answer to a GET is a success, whatever its status.
		if errors.As(err, new(statusError)) {
			err = nil
		}
		p.update(func() { h.done, h.err = true, err })
	}()
	return h
}

// sleepOf is how long a handler sleeps, if that is all it does. A runtime without
// processes treats a sleep command as a sleep, and anything else as instant.
func sleepOf(handler *corev1.LifecycleHandler, real bool) (time.Duration, bool) {
	if handler.Sleep != nil {
		return time.Duration(handler.Sleep.Seconds) * time.Second, true
	}
	if real {
		return 0, false
	}
	var seconds float64
	if handler.Exec != nil && len(handler.Exec.Command) == 2 && handler.Exec.Command[0] == "sleep" {
		seconds, _ = strconv.ParseFloat(handler.Exec.Command[1], 64)
	}
	return time.Duration(seconds * float64(time.Second)), true
}

func (h *hook) finished(now time.Time) bool {
	return h == nil || h.done || h.cancel == nil && !now.Before(h.until)
}

// wake schedules a step of the Pod for the end of a sleep.
func (h *hook) wake(p *pod, now time.Time) {
	if h != nil && h.cancel == nil && now.Before(h.until) {
		p.wake(h.until)
	}
}

func (h *hook) abort() {
	if h != nil && h.cancel != nil {
		h.cancel()
	}
}
