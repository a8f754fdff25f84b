// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// container is the agent's record of one container of a Pod.
type container struct {
	spec       *corev1.Container // as of the current or the last step
	affordable bool              // the node can give what the spec requests

	// The instance that runs, or ran last.
	id, image, imageID string
	startedAt          time.Time
	restarts           int32
	resources          corev1.ResourceRequirements
	instance           Instance // nil unless it runs

	exit *corev1.ContainerStateTerminated // its end; nil while it runs
	last *corev1.ContainerStateTerminated // the end of the previous instance
	// waiting is what keeps the container from starting.
	waiting *corev1.ContainerStateWaiting

	// What is known of the running instance.
	hooked                       bool  // the postStart hook is done
	postStart                    *hook // nil if there is none
	startup, readiness, liveness probeResult
	stopProbes                   func() // nil if there are none
	halt                         *halt  // nil unless it is being stopped

	startAt time.Time     // earliest next start
	delay   time.Duration // the part of it due to a crash loop
	fresh   bool          // the next start follows a change, not a crash
	crash   backoff
	pull    pull
}

// observe takes over the container's spec.
func (c *container) observe(spec *corev1.Container, traits Traits) {
	c.spec = spec
	c.affordable = traits.MostCPU.IsZero() || spec.Resources.Requests.Cpu().Cmp(traits.MostCPU) <= 0
}

// started reports whether the running instance is up: the postStart hook and the
// startup probe have succeeded.
func (c *container) started() bool {
	return c.instance != nil && c.hooked && c.startup == probeSuccess
}

func (c *container) ready() bool { return c.started() && c.readiness == probeSuccess }

// resized reports whether the container has the resources of its spec.
func (c *container) resized() bool {
	return equality.Semantic.DeepEqual(c.resources, c.spec.Resources)
}

// restartsOnResize reports whether the container has to restart for its new resources.
func (c *container) restartsOnResize() bool {
	for _, policy := range c.spec.ResizePolicy {
		differ := func(had, wants corev1.ResourceList) bool {
			return !equality.Semantic.DeepEqual(had[policy.ResourceName], wants[policy.ResourceName])
		}
		if policy.RestartPolicy == corev1.RestartContainer && c.affordable &&
			(differ(c.resources.Requests, c.spec.Resources.Requests) || differ(c.resources.Limits, c.spec.Resources.Limits)) {
			return true
		}
	}
	return false
}

// drive advances a container as far as possible now. If it ends, it may be started again
// at once.
func (p *pod) drive(c *container, now time.Time) {
	for c.instance != nil || p.launch(c, now) {
		if c.instance != nil && !p.supervise(c, now) {
			return
		}
	}
}

// supervise handles a running instance: whether it has ended, must be stopped, and how
// far the stop is. It returns true if the instance has ended.
func (p *pod) supervise(c *container, now time.Time) bool {
	if p.reap(c, now) {
		return true
	}
	if c.halt == nil {
		if !c.hooked && c.postStart.finished(now) {
			c.hooked = c.postStart.err == nil
		}
		c.postStart.wake(p, now)
		cause := p.stopCause(c, now)
		if cause == nil {
			if c.affordable {
				c.resources = c.spec.Resources // a resize needs nothing more
			}
			return false
		}
		p.stop(c, now, *cause)
	}
	p.advance(c, now)
	return p.reap(c, now)
}

// launch starts the container if that is due. It returns false if the container has to
// wait.
func (p *pod) launch(c *container, now time.Time) bool {
	if c.exit != nil && !c.fresh && c.image != c.spec.Image {
		c.changed(now, p.backoff) // while it was down: crashes of the other image do not count
	}
	if now.Before(c.startAt) {
		if !c.fresh {
			c.waiting = &corev1.ContainerStateWaiting{
				Reason: "CrashLoopBackOff",
				Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
					c.delay, c.spec.Name, p.object.Name, p.object.Namespace, p.uid),
			}
		}
		p.wake(c.startAt)
		return false
	}
	imageID, ok := p.pullImage(c, now)
	if ok {
		p.start(c, imageID, now)
	}
	return ok
}

// start gives the container a new instance.
func (p *pod) start(c *container, imageID string, now time.Time) {
	if c.id != "" {
		c.restarts++
	}
	if c.id == "" || c.affordable {
		c.resources = c.spec.Resources
	}
	c.image, c.imageID, c.startedAt = c.spec.Image, imageID, now
	c.last, c.exit, c.waiting, c.fresh = c.exit, nil, nil, false
	instance, err := p.runtime.Start(ContainerConfig{
		Pod: p.object, Container: c.spec, IP: p.ip, Attempt: c.restarts, Exited: func() { p.enqueue(p.uid) },
	})
	if err != nil {
		// Counts as a crash, so that it is retried after a backoff.
		c.id = newContainerID(p.runtime)
		p.report(c, "Cannot start the container", err)
		p.ended(c, Exit{Code: 128, At: now, Message: err.Error()}, "StartError")
		return
	}
	c.instance, c.id = instance, instance.ID()
	c.hooked, c.startup, c.readiness, c.liveness = true, probeSuccess, probeSuccess, probeSuccess
	if c.spec.Lifecycle != nil && c.spec.Lifecycle.PostStart != nil {
		c.hooked = false
		c.postStart = p.startHook(c, c.spec.Lifecycle.PostStart, now)
	}
	if p.traits.Real {
		p.startProbes(c)
	}
}

// changed prepares the container for the restart that a new definition requires. As in
// a kubelet, that restart counts as the first of a crash loop: if the new instance
// crashes, it is not restarted at once.
func (c *container) changed(at time.Time, limits backoffLimits) {
	c.fresh, c.startAt = true, at
	_, c.crash = backoff{}.crashed(at, limits)
}

// reap records the end of an instance; it returns true if the container no longer runs.
func (p *pod) reap(c *container, now time.Time) bool {
	exit := c.instance.Exit()
	if exit == nil {
		return false
	}
	reason := "Completed"
	if exit.Code != 0 {
		reason = "Error"
	}
	fresh := c.halt != nil && c.halt.fresh
	p.ended(c, *exit, reason)
	if fresh {
		c.changed(now.Add(p.traits.UpdateDelay), p.backoff)
	}
	return true
}

// ended updates the record after the end of an instance.
func (p *pod) ended(c *container, exit Exit, reason string) {
	c.exit = &corev1.ContainerStateTerminated{
		ExitCode: exit.Code, Reason: reason, Message: exit.Message, ContainerID: c.id,
		StartedAt: stamp(c.startedAt), FinishedAt: stamp(exit.At),
	}
	if c.stopProbes != nil {
		c.stopProbes()
	}
	c.postStart.abort()
	if c.halt != nil {
		c.halt.hook.abort()
	}
	c.instance, c.halt, c.postStart, c.stopProbes = nil, nil, nil, nil
	c.delay, c.crash = c.crash.crashed(exit.At, p.backoff)
	c.startAt = exit.At.Add(c.delay)
}

// pull is the state of a container's image pulls.
type pull struct {
	image   string
	err     error // of the last attempt
	backoff backoff
	retryAt time.Time
	flipAt  time.Time // when ErrImagePull becomes ImagePullBackOff
}

// pullImage returns the ID of the container's image, or false with the reason in
// c.waiting.
func (p *pod) pullImage(c *container, now time.Time) (string, bool) {
	if c.pull.image != c.spec.Image {
		c.pull = pull{image: c.spec.Image}
	}
	if !now.Before(c.pull.retryAt) {
		imageID, err := p.runtime.Pull(c.spec.Image)
		if err == nil {
			c.pull = pull{}
			return imageID, true
		}
		c.pull.err, c.pull.backoff = err, c.pull.backoff.failed(now, p.backoff)
		c.pull.retryAt, c.pull.flipAt = now.Add(c.pull.backoff.wait), now.Add(p.backoff.base/10)
	}
	p.wake(c.pull.retryAt)
	if now.Before(c.pull.flipAt) {
		p.wake(c.pull.flipAt)
		c.waiting = &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: c.pull.err.Error()}
	} else {
		c.waiting = &corev1.ContainerStateWaiting{
			Reason: "ImagePullBackOff", Message: fmt.Sprintf("Back-off pulling image %q: %s", c.spec.Image, c.pull.err),
		}
	}
	return "", false
}
