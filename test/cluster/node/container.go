// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// role is a container's role in its Pod.
type role int

const (
	roleMain role = iota
	roleInit
	roleSidecar // an init container with restartPolicy Always
)

// container is the agent's record of one container of a Pod.
type container struct {
	name string
	role role

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
	readinessTurn                chan struct{} // requests an attempt out of turn
	stopProbes                   func()        // nil if there are none
	halt                         *halt         // nil unless it is being stopped

	startAt time.Time     // earliest next start
	delay   time.Duration // the part of it due to a crash loop
	fresh   bool          // the next start follows a change, not a crash
	crash   backoff
	pull    pull
}

// started reports whether the running instance is up: the postStart hook and the
// startup probe have succeeded.
func (c *container) started() bool {
	return c.instance != nil && c.hooked && c.startup == probeSuccess
}

func (c *container) ready() bool {
	return c.started() && c.readiness == probeSuccess
}

// passed reports whether the containers after this init container may start.
func (c *container) passed() bool {
	if c.role == roleSidecar {
		return c.started()
	}
	return c.exit != nil && c.exit.ExitCode == 0
}

// turnsPerStep bounds how often a container may end and start within one step.
const turnsPerStep = 8

// drive advances a container as far as possible now.
func (p *pod) drive(c *container, spec *corev1.Container, now time.Time) {
	for range turnsPerStep {
		if c.instance == nil && !p.launch(c, spec, now) {
			return
		}
		if c.instance == nil {
			continue // it could not be started
		}
		if p.supervise(c, spec, now); c.instance != nil {
			return
		}
	}
	p.wake(now)
}

// supervise handles a running instance: whether it has ended, must be stopped, and how
// far the stop is.
func (p *pod) supervise(c *container, spec *corev1.Container, now time.Time) {
	if p.reap(c, now) {
		return
	}
	if c.halt == nil {
		p.finishPostStart(c, now)
		cause := p.stopCause(c, spec, now)
		if cause == nil {
			c.resources = p.resourcesAtStart(c, spec) // a resize needs nothing more
			p.probeSoon(c, now)
			return
		}
		p.stop(c, spec, now, *cause)
	}
	p.advance(c, now, true)
	p.reap(c, now)
}

// launch starts the container if that is due. It returns false if the container has to
// wait or is not to run again.
func (p *pod) launch(c *container, spec *corev1.Container, now time.Time) bool {
	if c.exit != nil && !p.restarts(c) {
		c.waiting = nil
		return false
	}
	if c.exit != nil && !c.fresh && c.image != spec.Image {
		c.changed(now, p.backoff) // while it was down: crashes of the other image do not count
	}
	if now.Before(c.startAt) {
		if !c.fresh {
			c.waiting = &corev1.ContainerStateWaiting{
				Reason: "CrashLoopBackOff",
				Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
					c.delay, c.name, p.object.Name, p.object.Namespace, p.uid),
			}
			p.event(corev1.EventTypeWarning, "BackOff", c.name,
				fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.name, p.object.Name))
		}
		p.wake(c.startAt)
		return false
	}
	imageID, ok := p.pullImage(c, spec, now)
	if !ok {
		return false
	}
	p.start(c, spec, imageID, now)
	return true
}

// start gives the container a new instance.
func (p *pod) start(c *container, spec *corev1.Container, imageID string, now time.Time) {
	if c.id != "" {
		c.restarts++
	}
	c.image, c.imageID, c.resources = spec.Image, imageID, p.resourcesAtStart(c, spec)
	c.last, c.exit, c.waiting, c.fresh = c.exit, nil, nil, false
	c.startedAt = now
	instance, err := p.runtime.Start(ContainerConfig{
		Pod: p.object, Container: spec, IP: p.ip, HostIP: p.hostIP, Attempt: c.restarts,
		Init:   c.role == roleInit,
		Exited: func() { p.enqueue(p.uid) },
	})
	if err != nil {
		// Counts as a crash, so that it is retried after a backoff.
		c.id = newContainerID(p.runtime)
		p.event(corev1.EventTypeWarning, "Failed", c.name, "Error: "+err.Error())
		p.ended(c, Exit{Code: 128, At: now, Message: err.Error()}, "StartError")
		return
	}
	c.instance, c.id = instance, instance.ID()
	c.hooked, c.startup, c.readiness, c.liveness = true, probeSuccess, probeSuccess, probeSuccess
	p.event(corev1.EventTypeNormal, "Started", c.name, "Container started")
	if spec.Lifecycle != nil && spec.Lifecycle.PostStart != nil {
		c.hooked = false
		c.postStart = p.startHook(c, spec, spec.Lifecycle.PostStart, now)
	}
	if p.runtime.Traits().Real && c.role != roleInit {
		p.startProbes(c, spec)
	}
}

func (p *pod) finishPostStart(c *container, now time.Time) {
	switch {
	case c.hooked:
	case c.postStart.finished(now):
		c.hooked = c.postStart.err == nil
	default:
		c.postStart.wake(p, now)
	}
}

// probeSoon runs the readiness probe of a container that is up but not ready out of
// turn, as a kubelet does whenever it computes the status. With that and a check one
// second after the start, a program that starts quickly need not wait for the second
// period of its probe.
func (p *pod) probeSoon(c *container, now time.Time) {
	if c.readinessTurn == nil || !c.started() || c.readiness == probeSuccess {
		return
	}
	if soon := c.startedAt.Add(time.Second); now.Before(soon) {
		p.wake(soon)
	}
	select {
	case c.readinessTurn <- struct{}{}:
	default: // one is pending already
	}
}

// restarts reports whether the container is to run again after its end.
func (p *pod) restarts(c *container) bool {
	policy := p.object.Spec.RestartPolicy
	switch {
	case c.fresh || c.role == roleSidecar:
		return true
	case c.role == roleInit || policy == corev1.RestartPolicyOnFailure:
		return c.exit.ExitCode != 0 && policy != corev1.RestartPolicyNever
	}
	return policy == corev1.RestartPolicyAlways || policy == ""
}

// changed prepares the container for the restart that a new definition requires. As in
// a kubelet, that restart counts as the first of a crash loop: if the new instance
// crashes, it is not restarted at once.
func (c *container) changed(now time.Time, limits backoffLimits) {
	c.fresh, c.startAt = true, now
	_, c.crash = backoff{}.crashed(now, limits)
}

// reap records the end of an instance; it returns true if the container no longer runs.
func (p *pod) reap(c *container, now time.Time) bool {
	exit, ended := c.instance.Exit()
	if !ended {
		return false
	}
	reason := "Completed"
	if exit.Code != 0 {
		reason = "Error"
	}
	fresh := c.halt != nil && c.halt.fresh
	p.ended(c, exit, reason)
	if fresh {
		c.changed(now.Add(p.runtime.Delay(DelayUpdate, p.object)), p.backoff)
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
	c.instance, c.halt, c.postStart, c.stopProbes, c.readinessTurn = nil, nil, nil, nil, nil
	c.delay, c.crash = c.crash.crashed(exit.At, p.backoff)
	c.startAt = exit.At.Add(c.delay)
}

// pull is the state of a container's image pulls.
type pull struct {
	image   string
	err     *PullError // of the last attempt; nil if it went well
	backoff backoff
	retryAt time.Time
	flipAt  time.Time // when ErrImagePull becomes ImagePullBackOff
}

// pullImage returns the ID of the container's image, or false with the reason in
// c.waiting.
func (p *pod) pullImage(c *container, spec *corev1.Container, now time.Time) (string, bool) {
	if c.pull.image != spec.Image {
		c.pull = pull{image: spec.Image}
	}
	if c.pull.err == nil || !now.Before(c.pull.retryAt) && c.pull.err.Reason == ReasonErrImagePull {
		imageID, err := p.runtime.Resolve(spec.Image)
		if err == nil {
			c.pull = pull{image: spec.Image}
			p.event(corev1.EventTypeNormal, "Pulled", c.name, fmt.Sprintf("Container image %q already present on machine", spec.Image))
			return imageID, true
		}
		p.pullFailed(c, spec, err, now)
	}
	c.waiting = &corev1.ContainerStateWaiting{Reason: c.pull.err.Reason, Message: c.pull.err.Message}
	if c.pull.err.Reason != ReasonErrImagePull {
		return "", false // final, as long as the image has this name
	}
	p.wake(c.pull.retryAt)
	if now.Before(c.pull.flipAt) {
		p.wake(c.pull.flipAt)
		return "", false
	}
	c.waiting.Reason = ReasonImagePullBackOff
	c.waiting.Message = fmt.Sprintf("Back-off pulling image %q: %s", spec.Image, c.pull.err)
	return "", false
}

func (p *pod) pullFailed(c *container, spec *corev1.Container, err error, now time.Time) {
	failure := &PullError{Reason: ReasonErrImagePull, Message: err.Error()}
	errors.As(err, &failure)
	if failure.Reason == ReasonErrImagePull && spec.ImagePullPolicy == corev1.PullNever {
		failure = &PullError{
			Reason:  ReasonErrImageNeverPull,
			Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", spec.Image),
		}
	}
	c.pull.err = failure
	c.pull.backoff = c.pull.backoff.failed(now, p.backoff)
	c.pull.retryAt = now.Add(c.pull.backoff.wait)
	c.pull.flipAt = now.Add(p.backoff.base / 10)
	p.event(corev1.EventTypeWarning, "Failed", c.name, fmt.Sprintf("Failed to pull image %q: %s", spec.Image, failure.Message))
}

// restartsOnResize reports whether the container has to restart for its new resources.
func restartsOnResize(c *container, spec *corev1.Container) bool {
	for _, policy := range spec.ResizePolicy {
		if policy.RestartPolicy != corev1.RestartContainer {
			continue
		}
		for _, lists := range [][2]corev1.ResourceList{
			{c.resources.Requests, spec.Resources.Requests}, {c.resources.Limits, spec.Resources.Limits},
		} {
			if !equality.Semantic.DeepEqual(lists[0][policy.ResourceName], lists[1][policy.ResourceName]) {
				return true
			}
		}
	}
	return false
}
