// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// kubelet is what all Pods of an agent share.
type kubelet struct {
	runtime Runtime
	traits  Traits
	clock   clock.Clock
	log     logr.Logger
	backoff backoffLimits
	enqueue func(types.UID)
	// base ends with the agent, and with it every hook and probe.
	base context.Context
}

// pod is the agent's record of one Pod. The worker that holds the Pod's key and
// whatever runs concurrently (hooks, probes) share it under mu; only the worker uses
// version and deleted.
type pod struct {
	*kubelet
	uid    types.UID
	latest atomic.Pointer[corev1.Pod] // the latest version from the API server
	gone   atomic.Bool                // the object is gone

	mu     sync.Mutex
	object *corev1.Pod // as of the current or the last step
	podState
	// next is when the current step wants another one; zero: not.
	next time.Time
	// termination is nil until the Pod has to end.
	termination *termination

	version uint64 // resource version of our last write
	deleted bool   // we have asked the API server to delete the object
}

// podState is the input for computing a Pod's status.
type podState struct {
	ip, hostIP string
	startedAt  time.Time
	// beginAt is when the containers may start.
	beginAt time.Time
	// containers are in the order of the spec; nil until the first step.
	containers []*container
	// unready reports whether the Pod terminates and is to be reported as not ready.
	unready bool
	// down reports whether the Pod was terminated and no container runs any more.
	down bool
}

// step advances the Pod as far as possible now and returns when to call it again; zero
// means that it waits for an event that will queue it.
func (p *pod) step(object *corev1.Pod, gone bool, now time.Time) (time.Time, error) {
	p.object, p.next = object, time.Time{}
	if p.containers == nil {
		p.startedAt, p.beginAt = now, now.Add(p.traits.ReadyDelay)
		for range object.Spec.Containers {
			p.containers = append(p.containers, &container{affordable: true})
		}
	}
	for i, c := range p.containers {
		c.observe(&object.Spec.Containers[i], p.traits)
	}
	var err error
	switch {
	case gone:
		p.killAll(now)
	case object.DeletionTimestamp != nil:
		p.terminate(now)
	case object.Status.Phase == corev1.PodSucceeded || object.Status.Phase == corev1.PodFailed:
		p.stopAll(now, now.Add(p.grace(nil))) // somebody else has declared its end
	case now.Before(p.beginAt):
		p.wake(p.beginAt)
	default:
		err = p.converge(now)
	}
	return p.next, err
}

// wake requests another step at the given time.
func (p *pod) wake(at time.Time) {
	if p.next.IsZero() || at.Before(p.next) {
		p.next = at
	}
}

// converge drives every container towards its spec.
func (p *pod) converge(now time.Time) (err error) {
	switch {
	case p.ip != "":
	case p.object.Spec.HostNetwork:
		p.ip = p.hostIP
	default:
		if p.ip, err = p.runtime.Address(p.uid); err != nil {
			return fmt.Errorf("address of the Pod: %w", err)
		}
	}
	for _, c := range p.containers {
		p.drive(c, now)
	}
	return nil
}

// grace is the time between SIGTERM (or the preStop hook) and SIGKILL; override is in
// seconds and takes precedence over the Pod's own.
func (p *pod) grace(override *int64) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if override != nil {
		seconds = *override
	} else if own := p.object.Spec.TerminationGracePeriodSeconds; own != nil {
		seconds = *own
	}
	return time.Duration(seconds) * time.Second
}

// update changes the record from outside a step and queues the Pod.
func (p *pod) update(change func()) {
	p.mu.Lock()
	change()
	p.mu.Unlock()
	p.enqueue(p.uid)
}

// report logs a failure of a container.
func (p *pod) report(c *container, what string, err error) {
	p.log.Info(what, "pod", p.object.Namespace+"/"+p.object.Name, "container", c.spec.Name, "error", err.Error())
}
