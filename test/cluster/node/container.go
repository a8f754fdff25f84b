// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/usher-dev/usher/test/model"
)

const (
	// pullPeriod is how often a missing image is looked for.
	pullPeriod = 10 * time.Second
	// The first restart after a crash is immediate. Later ones wait for a back-off, which doubles from
	// firstBackoff to lastBackoff. After forgiveAfter without a crash, it starts over. These are a
	// kubelet's values.
	firstBackoff, lastBackoff, forgiveAfter = 10 * time.Second, 5 * time.Minute, 10 * time.Minute
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
	instance           Instance     // nil unless it runs
	passes             *atomic.Bool // its readiness probe's last attempt
	stopProbe          func()       // nil if it has none
	halt               *halt        // nil unless it is being stopped

	exit *corev1.ContainerStateTerminated // its end; nil while it runs
	last *corev1.ContainerStateTerminated // the end of the previous instance
	// waiting says what keeps the container from starting.
	waiting *corev1.ContainerStateWaiting

	startAt time.Time // earliest next start
	fresh   bool      // the next start follows a change, not a crash
	crashes int       // in a row
}

// observe takes over the container's spec.
func (c *container) observe(spec *corev1.Container, traits Traits) {
	c.spec = spec
	c.affordable = traits.MostCPU.IsZero() || spec.Resources.Requests.Cpu().Cmp(traits.MostCPU) <= 0
}

func (c *container) ready() bool { return c.instance != nil && c.passes.Load() }

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
		if c.image == c.spec.Image && !c.restartsOnResize() {
			if c.affordable {
				c.resources = c.spec.Resources // a resize needs nothing more
			}
			return false
		}
		p.stop(c, now, now.Add(p.grace(nil)))
		c.halt.fresh = true
	}
	p.advance(c, now)
	return p.reap(c, now)
}

// launch starts the container if that is due. It returns false if the container has to
// wait.
func (p *pod) launch(c *container, now time.Time) bool {
	if c.exit != nil && !c.fresh && c.image != c.spec.Image {
		c.changed(now) // while it was down: crashes of the other image do not count
	}
	if now.Before(c.startAt) {
		if !c.fresh {
			c.waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off restarting failed container " + c.spec.Name}
		}
		p.wake(c.startAt)
		return false
	}
	if lacks := model.Lacks(p.object, c.spec); lacks != "" {
		c.waiting = model.NotCreated(lacks) // until the Pod changes
		return false
	}
	imageID := ""
	for _, image := range p.images(c.spec) {
		var err error
		imageID, err = p.runtime.Pull(p.object.Spec.NodeName, image)
		if pulling, ok := errors.AsType[*Pulling](err); ok {
			c.waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
			p.wake(pulling.Until)
			return false
		}
		if err != nil {
			c.waiting = &corev1.ContainerStateWaiting{
				Reason: "ImagePullBackOff", Message: fmt.Sprintf("Back-off pulling image %q: %s", image, err),
			}
			p.wake(now.Add(pullPeriod))
			return false
		}
	}
	p.start(c, imageID, now)
	return true
}

// images returns the images that a container mounts, which a kubelet pulls first, and its own.
func (p *pod) images(c *corev1.Container) (list []string) {
	for _, v := range p.object.Spec.Volumes {
		mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name })
		if v.Image != nil && mounted {
			list = append(list, v.Image.Reference)
		}
	}
	return append(list, c.Image)
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
		Pod: p.object, Container: c.spec, IP: p.ip, Attempt: c.restarts, Exited: p.again(p.object),
	})
	if err != nil {
		// Counts as a crash, so that it is retried after a backoff.
		c.id = newContainerID(p.runtime)
		p.log.Info("Cannot start the container", "pod", p.object.Namespace+"/"+p.object.Name, "container", c.spec.Name, "error", err.Error())
		c.ended(Exit{Code: 128, At: now, Message: err.Error()}, "StartError")
		return
	}
	c.instance, c.id = instance, instance.ID()
	p.startProbe(c)
}

// changed prepares the container for the restart that a new definition requires.
func (c *container) changed(at time.Time) { c.fresh, c.startAt, c.crashes = true, at, 0 }

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
	c.ended(*exit, reason)
	if fresh {
		c.changed(now.Add(p.runtime.Traits().UpdateDelay))
	}
	return true
}

// ended updates the record after the end of an instance.
func (c *container) ended(exit Exit, reason string) {
	c.exit = &corev1.ContainerStateTerminated{
		ExitCode: exit.Code, Reason: reason, Message: exit.Message, ContainerID: c.id,
		StartedAt: stamp(c.startedAt), FinishedAt: stamp(exit.At),
	}
	if c.stopProbe != nil {
		c.stopProbe()
	}
	c.instance, c.halt, c.stopProbe = nil, nil, nil
	if exit.At.Sub(c.startedAt) > forgiveAfter {
		c.crashes = 0
	}
	c.startAt = exit.At.Add(backoff(c.crashes))
	c.crashes++
}

// backoff returns how long to wait after that many crashes before the last one.
func backoff(crashes int) time.Duration {
	if crashes == 0 {
		return 0
	}
	return min(firstBackoff<<min(crashes-1, 10), lastBackoff)
}

const (
	// firstAttempt is when a probe starts: a program that is up by then is spared a
	// failure.
	firstAttempt = 100 * time.Millisecond
	// probeTimeout bounds one attempt.
	probeTimeout = time.Second
)

// startProbe starts the readiness probe of the running instance, which ends with it. Only
// a GET is probed, and the last attempt counts, whatever the thresholds are.
func (p *pod) startProbe(c *container) {
	passes, probe := &atomic.Bool{}, c.spec.ReadinessProbe
	c.passes = passes
	if probe == nil || probe.HTTPGet == nil || !p.traits.Real {
		passes.Store(true)
		return
	}
	ctx, cancel := context.WithCancel(p.base)
	c.stopProbe = cancel
	url := "http://" + net.JoinHostPort(p.ip, strconv.Itoa(portOf(c.spec, probe.HTTPGet.Port))) + probe.HTTPGet.Path
	period, again := time.Duration(cmp.Or(probe.PeriodSeconds, 10))*time.Second, p.again(p.object)
	go func() {
		for delay := firstAttempt; ; delay = period {
			select {
			case <-ctx.Done():
				return
			case <-time.After(delay):
			}
			if now := succeeds(ctx, url); now != passes.Swap(now) {
				again()
			}
		}
	}()
}

// portOf returns the number of a port of a container.
func portOf(spec *corev1.Container, port intstr.IntOrString) int {
	for _, named := range spec.Ports {
		if port.Type == intstr.String && named.Name == port.StrVal {
			return int(named.ContainerPort)
		}
	}
	return port.IntValue()
}

// succeeds reports whether a GET is answered with success; it does not follow redirects,
// which count as answers.
func succeeds(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	request.Close = true
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode >= 200 && response.StatusCode < 400
}

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

// killAll kills the remaining containers of a Pod whose object is gone. It returns true if none runs
// any more.
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

func earlier(a, b time.Time) time.Time { return slices.MinFunc([]time.Time{a, b}, time.Time.Compare) }
func later(a, b time.Time) time.Time   { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }
