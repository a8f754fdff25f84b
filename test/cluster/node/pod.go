// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// kubelet is what all Pods of an agent share.
type kubelet struct {
	runtime           Runtime
	clock             clock.WithTicker
	recorder          record.EventRecorder // nil: no events
	silent            func(node int) bool  // the node has failed
	backoff           backoffLimits
	readyUntilStopped bool
	enqueue           func(types.UID)
	// base ends with the agent, and with it every hook and probe.
	base context.Context
}

// pod is the agent's record of one Pod. The worker that holds the Pod's key and
// whatever runs concurrently (hooks, probes) share it under mu; only the worker uses
// the fields below mu.
type pod struct {
	*kubelet
	uid  types.UID
	node int // index

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
	// containers are in the order of the spec, init containers first; nil until the
	// first step.
	containers []*container
	// initialized reports whether the init containers have ever completed.
	initialized bool
	// unready reports whether a terminating Pod is to be reported as not ready.
	unready bool
	// down reports whether the Pod was terminated and no container runs any more.
	down bool
	// mostCPU is the most that a resize can give; zero is no limit.
	mostCPU resource.Quantity
}

// step advances the Pod as far as possible now and returns when to call it again; zero
// means that it waits for an event that will queue it.
func (p *pod) step(object *corev1.Pod, gone bool, now time.Time) (time.Time, error) {
	p.object, p.next = object, time.Time{}
	if p.containers == nil {
		p.adopt(now)
	}
	var err error
	switch {
	case gone:
		p.killAll(now)
	case object.DeletionTimestamp != nil:
		p.terminate(now)
	case object.Status.Phase == corev1.PodSucceeded || object.Status.Phase == corev1.PodFailed:
		p.stopAll(now, now.Add(p.grace(nil)))
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

// adopt creates the record of a Pod seen for the first time, from its status if a
// former agent wrote one.
func (p *pod) adopt(now time.Time) {
	status := &p.object.Status
	p.hostIP, p.mostCPU = p.runtime.HostIP(p.node), p.runtime.Traits().MostCPU
	p.startedAt, p.beginAt = now, now
	if status.StartTime != nil {
		p.startedAt = status.StartTime.Time
	}
	if len(status.ContainerStatuses) == 0 {
		p.beginAt = now.Add(p.runtime.Delay(DelayReady, p.object))
	}
	p.initialized = conditionTrue(status.Conditions, corev1.PodInitialized)
	spec := &p.object.Spec
	p.containers = make([]*container, 0, len(spec.InitContainers)+len(spec.Containers))
	for i := range spec.InitContainers {
		role := roleInit
		if policy := spec.InitContainers[i].RestartPolicy; policy != nil && *policy == corev1.ContainerRestartPolicyAlways {
			role = roleSidecar
		}
		p.adoptContainer(&spec.InitContainers[i], role, status.InitContainerStatuses, now)
	}
	for i := range spec.Containers {
		p.adoptContainer(&spec.Containers[i], roleMain, status.ContainerStatuses, now)
	}
}

func (p *pod) adoptContainer(spec *corev1.Container, role role, statuses []corev1.ContainerStatus, now time.Time) {
	c := &container{name: spec.Name, role: role}
	p.containers = append(p.containers, c)
	status := findStatus(statuses, spec.Name)
	if status == nil || status.ContainerID == "" {
		return // it has never run
	}
	c.id, c.image, c.imageID, c.restarts = status.ContainerID, status.Image, status.ImageID, status.RestartCount
	c.resources, c.last = spec.Resources, status.LastTerminationState.Terminated
	if status.Resources != nil {
		c.resources = *status.Resources.DeepCopy()
	}
	switch {
	case status.State.Terminated != nil:
		c.exit = status.State.Terminated
	case status.State.Waiting != nil:
		c.exit, c.last = c.last, nil
	case status.State.Running != nil:
		c.startedAt = status.State.Running.StartedAt.Time
		if instance, ok := p.runtime.Adopt(c.id); ok {
			c.instance = instance
			c.hooked, c.startup, c.readiness, c.liveness = true, probeSuccess, probeSuccess, probeSuccess
			return
		}
		// The process ended with the former agent.
		c.exit = &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The container did not outlive the node agent",
			ContainerID: c.id, StartedAt: stamp(c.startedAt), FinishedAt: stamp(now),
		}
	}
}

// converge starts what has to run: init containers one after the other, then the others
// all at once.
func (p *pod) converge(now time.Time) error {
	if now.Before(p.beginAt) {
		p.wake(p.beginAt)
		return nil
	}
	if err := p.ensureAddress(); err != nil {
		return err
	}
	if p.completed() {
		p.stopAll(now, now.Add(p.grace(nil))) // only sidecars are left: they would be restarted below
		return nil
	}
	for i, c := range p.containers {
		if c.role == roleInit && p.initialized {
			continue
		}
		p.drive(c, p.spec(i), now)
		if c.role != roleMain && !c.passed() && !p.mainRunning() {
			return nil // the next one waits for it
		}
	}
	p.initialized = true
	if p.completed() {
		p.stopAll(now, now.Add(p.grace(nil)))
	}
	return nil
}

func (p *pod) ensureAddress() error {
	if p.object.Spec.HostNetwork {
		p.ip = p.hostIP
	}
	if p.ip != "" {
		return nil
	}
	ip, err := p.runtime.Address(p.object)
	if err != nil {
		p.event(corev1.EventTypeWarning, "FailedCreatePodSandBox", "", "Failed to give the Pod an address: "+err.Error())
		return fmt.Errorf("address of the Pod: %w", err)
	}
	p.ip = ip
	return nil
}

// completed reports whether all main containers have ended for good.
func (p *pod) completed() bool {
	for _, c := range p.containers {
		if c.role == roleMain && (c.instance != nil || c.exit == nil || p.restarts(c)) {
			return false
		}
	}
	return true
}

func (p *pod) mainRunning() bool {
	for _, c := range p.containers {
		if c.role == roleMain && c.instance != nil {
			return true
		}
	}
	return false
}

// spec is the spec of the container with the given index in p.containers.
func (p *pod) spec(i int) *corev1.Container {
	return containerSpec(p.object, i)
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

// event records an event about the Pod, or about one of its containers.
func (p *pod) event(kind, reason, container, message string) {
	if p.recorder == nil || p.silent(p.node) {
		return
	}
	ref := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: p.object.Namespace, Name: p.object.Name,
		UID: p.uid, ResourceVersion: p.object.ResourceVersion,
	}
	if container != "" {
		ref.FieldPath = "spec.containers{" + container + "}"
		for i := range p.object.Spec.InitContainers {
			if p.object.Spec.InitContainers[i].Name == container {
				ref.FieldPath = "spec.initContainers{" + container + "}"
			}
		}
	}
	p.recorder.Event(ref, kind, reason, message)
}

// stamp is a time as the API server stores it: in whole seconds.
func stamp(at time.Time) metav1.Time {
	return metav1.NewTime(at.Truncate(time.Second))
}

func findStatus(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

func conditionTrue(conditions []corev1.PodCondition, kind corev1.PodConditionType) bool {
	for i := range conditions {
		if conditions[i].Type == kind {
			return conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}
