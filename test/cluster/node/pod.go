// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kubelet has the parts that all Pods of an agent share.
type kubelet struct {
	runtime Runtime
	traits  Traits
	clock   clock.PassiveClock
	log     logr.Logger
	// enqueue asks for another step of a Pod.
	enqueue func(types.NamespacedName)
	// base ends with the agent, and with it every probe.
	base context.Context
}

// pod is the agent's record of one Pod. Only one worker at a time has it.
type pod struct {
	*kubelet
	uid    types.UID
	object *corev1.Pod // as of the last step
	podState
	// next is when the current step needs another one; zero if it needs none.
	next time.Time
	// termination is nil until the Pod has to end.
	termination *termination

	version string // resource version of our last write
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

// podKey returns an object that only names a Pod.
func podKey(object *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: object.Namespace, Name: object.Name}}
}

// step advances the Pod as far as possible now and returns when to call it again; zero
// means that it waits for an event that will queue it.
func (p *pod) step(object *corev1.Pod, now time.Time) (time.Time, error) {
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
	case object.DeletionTimestamp != nil:
		p.terminate(now)
	case object.Status.Phase == corev1.PodSucceeded || object.Status.Phase == corev1.PodFailed:
		p.stopAll(now, now.Add(p.grace(nil))) // another writer has set its phase to an end
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

// again asks for another step from outside one.
func (p *pod) again(object *corev1.Pod) func() {
	return func() { p.enqueue(client.ObjectKeyFromObject(object)) }
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

// grace returns the time between SIGTERM (or the preStop hook) and SIGKILL; override is in seconds and
// takes precedence over the Pod's own.
func (p *pod) grace(override *int64) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if override != nil {
		seconds = *override
	} else if own := p.object.Spec.TerminationGracePeriodSeconds; own != nil {
		seconds = *own
	}
	return time.Duration(seconds) * time.Second
}
