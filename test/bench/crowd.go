// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// crowd is what a watch of the Pods has reported. It is the store of a reflector and
// keeps only what is measured of each Pod: an informer's copy of thousands of Pods
// would take memory and CPU time from what is measured.
type crowd struct {
	now func() time.Time
	// saw is called with every existing Pod and the state it was last seen in.
	saw func(pod *corev1.Pod, before apps.LifecycleState)

	mu      sync.Mutex
	changed chan struct{} // has one element after a change
	members map[types.UID]member
	settled map[string]int // Pods that have reached their target, by image
	ready   int
	version uint64 // the last resource version seen
	tally
}

// tally is what is counted in one phase.
type tally struct {
	least int // ready Pods
	outs  []time.Duration
	joins []time.Duration
}

// member is one Pod.
type member struct {
	ready bool
	// since is when it was last seen to become unready, or was first seen.
	since time.Time
	// served reports whether it has been ready before.
	served bool
	// image is the spec's image if the Pod has reached its target: ready, running it,
	// at rest.
	image string
	state apps.LifecycleState
}

var _ cache.ReflectorStore = (*crowd)(nil)

func newCrowd(now func() time.Time, saw func(*corev1.Pod, apps.LifecycleState)) *crowd {
	return &crowd{
		now: now, saw: saw, changed: make(chan struct{}, 1),
		members: map[types.UID]member{}, settled: map[string]int{},
	}
}

// Add stores a new Pod.
func (c *crowd) Add(object any) error { return c.Update(object) }

// Update stores the present version of a Pod.
func (c *crowd) Update(object any) error {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("the watch of Pods brought a %T", object)
	}
	c.mu.Lock()
	before := c.observe(pod)
	c.signal()
	c.mu.Unlock()
	c.saw(pod, before)
	return nil
}

// Delete removes a Pod that is gone.
func (c *crowd) Delete(object any) error {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("the watch of Pods brought a %T", object)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = max(c.version, versionOf(pod))
	c.remove(pod.UID)
	c.signal()
	return nil
}

// Replace replaces all Pods after an interrupted watch.
func (c *crowd) Replace(objects []any, _ string) error {
	there := map[types.UID]bool{}
	for _, object := range objects {
		if err := c.Update(object); err != nil {
			return err
		}
		if pod, ok := object.(*corev1.Pod); ok {
			there[pod.UID] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid := range c.members {
		if !there[uid] {
			c.remove(uid)
		}
	}
	c.signal()
	return nil
}

// Resync does nothing: the crowd has no handlers to notify again.
func (c *crowd) Resync() error { return nil }

func (c *crowd) signal() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *crowd) remove(uid types.UID) {
	old, known := c.members[uid]
	if !known {
		return
	}
	c.uncount(old)
	delete(c.members, uid)
	c.least = min(c.least, c.ready)
}

func (c *crowd) uncount(m member) {
	if m.ready {
		c.ready--
	}
	if m.image != "" {
		c.settled[m.image]--
	}
}

// observe updates the counts for a Pod and returns its previous state.
func (c *crowd) observe(pod *corev1.Pod) apps.LifecycleState {
	now := c.now()
	c.version = max(c.version, versionOf(pod))
	old, known := c.members[pod.UID]
	m := member{ready: inService(pod), since: old.since, served: old.served, state: stateOf(pod)}
	if m.ready && atRest(pod) {
		m.image = pod.Spec.Containers[0].Image
	}
	switch {
	case known:
		c.uncount(old)
		if old.ready && !m.ready {
			m.since = now
		}
	default:
		m.since = now
	}
	if m.ready && !old.ready {
		c.joined(m, now)
		m.served = true
	}
	if m.ready {
		c.ready++
	}
	if m.image != "" {
		c.settled[m.image]++
	}
	c.members[pod.UID] = m
	c.least = min(c.least, c.ready)
	return old.state
}

func (c *crowd) joined(m member, now time.Time) {
	if m.served {
		c.outs = append(c.outs, now.Sub(m.since))
		return
	}
	c.joins = append(c.joins, now.Sub(m.since))
}

func stateOf(pod *corev1.Pod) apps.LifecycleState {
	return apps.LifecycleState(pod.Labels[apps.LabelLifecycleState])
}

// inService reports whether callers may use the Pod.
func inService(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && isTrue(pod, corev1.PodReady)
}

func isTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// atRest reports whether the container runs what the spec asks for and no controller
// has anything left to do: a Pod without a controller has no state.
func atRest(pod *corev1.Pod) bool {
	state := stateOf(pod)
	return (state == "" || state == apps.StateNormal) &&
		len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].Image == pod.Spec.Containers[0].Image
}

// begin starts a new tally.
func (c *crowd) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally = tally{least: c.ready}
}

// end returns the tally.
func (c *crowd) end() tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tally
}

// await waits until there are that many Pods, all at their target with the image.
func (c *crowd) await(ctx context.Context, pods int, image string) error {
	return c.wait(ctx, func() string {
		settled := c.settled[image]
		if len(c.members) == pods && (pods == 0 || settled == pods) {
			return ""
		}
		return fmt.Sprintf("of %d Pods %d are ready, and %d at rest with image %s; there should be %d",
			len(c.members), c.ready, settled, image, pods)
	})
}

// awaitVersion waits until the watch has caught up with a write.
func (c *crowd) awaitVersion(ctx context.Context, version uint64) error {
	return c.wait(ctx, func() string {
		if c.version >= version {
			return ""
		}
		return fmt.Sprintf("the watch of Pods is at version %d, and should get to %d", c.version, version)
	})
}

// wait waits until lacking returns nothing. Callers hold the lock.
func (c *crowd) wait(ctx context.Context, lacking func() string) error {
	for {
		c.mu.Lock()
		lack := lacking()
		c.mu.Unlock()
		if lack == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", lack, context.Cause(ctx))
		case <-c.changed:
		}
	}
}
