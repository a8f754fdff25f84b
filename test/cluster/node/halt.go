// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
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
	message  string
	fresh    bool
}

// stopCause is why a running container has to be stopped although its Pod continues;
// nil if it does not.
func (p *pod) stopCause(c *container, spec *corev1.Container, now time.Time) *haltCause {
	cause := haltCause{deadline: now.Add(p.grace(nil))}
	switch {
	case c.image != spec.Image:
		cause.fresh, cause.message = true, "definition changed"
	case restartsOnResize(c, spec) && p.affordable(spec):
		cause.fresh, cause.message = true, "resize requires restart"
	case c.liveness == probeFailure:
		cause.deadline = now.Add(p.grace(spec.LivenessProbe.TerminationGracePeriodSeconds))
		cause.message = "failed liveness probe"
	case c.startup == probeFailure:
		cause.deadline = now.Add(p.grace(spec.StartupProbe.TerminationGracePeriodSeconds))
		cause.message = "failed startup probe"
	case c.postStart.failed(now):
		p.event(corev1.EventTypeWarning, "FailedPostStartHook", c.name, "PostStartHook failed: "+c.postStart.err.Error())
		cause.message = "failed in its postStart hook"
	default:
		return nil
	}
	cause.message = "Container " + c.name + " " + cause.message
	if cause.fresh || p.object.Spec.RestartPolicy != corev1.RestartPolicyNever {
		cause.message += ", will be restarted"
	}
	return &cause
}

// stop starts the stop of a running instance.
func (p *pod) stop(c *container, spec *corev1.Container, now time.Time, cause haltCause) {
	p.event(corev1.EventTypeNormal, "Killing", c.name, cause.message)
	c.halt = &halt{deadline: cause.deadline, fresh: cause.fresh}
	if spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil && now.Before(cause.deadline) {
		c.halt.hook = p.startHook(c, spec, spec.Lifecycle.PreStop, now)
	}
}

// advance advances a stop as far as possible now. SIGTERM waits for mayEnd, unless the
// deadline has passed.
func (p *pod) advance(c *container, now time.Time, mayEnd bool) {
	h := c.halt
	if !h.signalled {
		if (!h.hook.finished(now) || !mayEnd) && now.Before(h.deadline) {
			h.hook.wake(p, now)
			p.wake(h.deadline)
			return
		}
		h.hook.abort()
		if h.hook.failed(now) {
			p.event(corev1.EventTypeWarning, "FailedPreStopHook", c.name, "PreStopHook failed: "+h.hook.err.Error())
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

// hook is a running lifecycle handler. A nil hook has finished.
type hook struct {
	until  time.Time          // of a sleep
	cancel context.CancelFunc // of anything else; nil for a sleep
	done   bool
	err    error
}

// startHook starts a lifecycle handler. Its result arrives as an update of the Pod.
func (p *pod) startHook(c *container, spec *corev1.Container, handler *corev1.LifecycleHandler, now time.Time) *hook {
	if sleep, ok := sleepOf(handler, p.runtime.Traits().Real); ok {
		return &hook{until: now.Add(sleep)}
	}
	ctx, cancel := context.WithCancel(p.base)
	h := &hook{cancel: cancel}
	run := handlerOf(c.instance, spec, handler, p.ip)
	go func() {
		err := run(ctx)
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
	if handler.Exec != nil && len(handler.Exec.Command) == 2 && handler.Exec.Command[0] == "sleep" {
		if seconds, err := strconv.ParseFloat(handler.Exec.Command[1], 64); err == nil {
			return time.Duration(seconds * float64(time.Second)), true
		}
	}
	return 0, true
}

func (h *hook) finished(now time.Time) bool {
	return h == nil || h.done || h.cancel == nil && !now.Before(h.until)
}

func (h *hook) failed(now time.Time) bool {
	return h != nil && h.finished(now) && h.err != nil
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
