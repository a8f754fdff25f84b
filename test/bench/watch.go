// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// podWatch has the reports of a watch of the Pods: of each Pod only what is measured.
type podWatch struct {
	stage.Watched
	now func() time.Time
	// saw is called with every existing Pod and the state it was last seen in.
	saw func(pod *corev1.Pod, before apps.LifecycleState)

	pods    map[string]podState // by name
	settled map[string]int      // Pods that have reached their target, by image
	ready   int
	tally
}

// tally has the counts of one step.
type tally struct {
	least int // ready Pods
	// out is how long Pods that had been ready were not ready until they were again,
	// startup how long new Pods took until they were ready.
	out, startup traffic.Latencies
}

// podState is one Pod.
type podState struct {
	ready bool
	// since is when it was last seen to become unready, or was first seen.
	since time.Time
	// served reports whether it has been ready before.
	served bool
	// settled is the spec's image if the Pod has reached its target: in service, running it,
	// nothing in progress.
	settled string
	state   apps.LifecycleState
}

func newPodWatch(now func() time.Time, saw func(*corev1.Pod, apps.LifecycleState)) *podWatch {
	return &podWatch{now: now, saw: saw, pods: map[string]podState{}, settled: map[string]int{}}
}

// is records a new or changed Pod.
func (w *podWatch) is(pod *corev1.Pod) {
	var old podState
	w.Change(func() {
		known := false
		if old, known = w.pods[pod.Name]; !known {
			old.since = w.now()
		}
		w.count(old, -1)
		w.pods[pod.Name] = w.observe(pod, old)
		w.count(w.pods[pod.Name], 1)
		w.least = min(w.least, w.ready)
	})
	w.saw(pod, old.state)
}

// observe returns a Pod's state after an older one, and tallies how long it was unready.
func (w *podWatch) observe(pod *corev1.Pod, old podState) podState {
	p := podState{ready: inService(pod), since: old.since, served: old.served, state: stateOf(pod)}
	if want := pod.Spec.Containers[0].Image; p.ready && (p.state == "" || p.state == apps.StateNormal) && containerImage(pod) == want {
		p.settled = want
	}
	switch {
	case old.ready && !p.ready:
		p.since = w.now()
	case old.ready == p.ready:
	case p.served:
		w.out = append(w.out, w.now().Sub(p.since))
	default:
		w.startup, p.served = append(w.startup, w.now().Sub(p.since)), true
	}
	return p
}

// gone removes a deleted Pod.
func (w *podWatch) gone(pod *corev1.Pod) {
	w.Change(func() {
		w.count(w.pods[pod.Name], -1)
		delete(w.pods, pod.Name)
		w.least = min(w.least, w.ready)
	})
}

func (w *podWatch) count(p podState, by int) {
	if p.settled != "" {
		w.settled[p.settled] += by
	}
	if p.ready {
		w.ready += by
	}
}

func stateOf(pod *corev1.Pod) apps.LifecycleState {
	return apps.LifecycleState(pod.Labels[apps.LabelLifecycleState])
}

// inService reports whether callers may use the Pod.
func inService(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && stage.Ready(pod) }

func containerImage(pod *corev1.Pod) string {
	if len(pod.Status.ContainerStatuses) == 0 {
		return ""
	}
	return pod.Status.ContainerStatuses[0].Image
}

// begin starts a new tally, end returns it.
func (w *podWatch) begin() { w.Change(func() { w.tally = tally{least: w.ready} }) }

func (w *podWatch) end() (t tally) {
	w.Read(func() { t = w.tally })
	return t
}

// anyNumber means that await accepts any number of Pods.
const anyNumber = -1

// await waits until there are that many Pods, and of each image that many that have
// reached their target.
func (w *podWatch) await(ctx context.Context, pods int, settled map[string]int) error {
	return w.Await(ctx, func() string {
		right := pods == anyNumber || len(w.pods) == pods
		for image, n := range settled {
			right = right && w.settled[image] >= n
		}
		return stage.Unless(right, "of %d Pods %d are ready, and of each image %v are settled; there should be %d Pods, and %v settled",
			len(w.pods), w.ready, w.settled, pods, settled)
	})
}

// setWatch has the status of the CloneSets, by name, as a watch has reported it.
type setWatch struct {
	stage.Watched
	sets map[string]apps.CloneSetStatus
}

func (w *setWatch) is(set *apps.CloneSet) { w.Change(func() { w.sets[set.Name] = set.Status }) }

// await waits until each status reports that the Pods match a step of a generation; no
// generations mean any.
func (w *setWatch) await(ctx context.Context, generations []int64, p step) error {
	all, updated := int32(p.replicas), int32(p.replicas-p.old)
	for i, name := range p.names() {
		generation := int64(0)
		if generations != nil {
			generation = generations[i]
		}
		if err := w.Await(ctx, func() string {
			s := w.sets[name]
			return stage.Unless(s.ObservedGeneration >= generation && s.Replicas == all && s.ReadyReplicas == all && s.AvailableReplicas == all &&
				s.UpdatedReplicas == updated && s.UpdatedReadyReplicas == updated && s.UpdatedAvailableReplicas == updated,
				"the status should get to %d updated and available Pods of %d: generation %d of %d is observed, %d Pods, %d updated, %d of them available",
				updated, all, s.ObservedGeneration, generation, s.Replicas, s.UpdatedReplicas, s.UpdatedAvailableReplicas)
		}); err != nil {
			return fmt.Errorf("CloneSet %s: %w", name, err)
		}
	}
	return nil
}
