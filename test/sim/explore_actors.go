// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// Wish is something that the user does. Exactly one of its functions is set.
type Wish struct {
	What string
	// Set changes the CloneSet.
	Set func(*apps.CloneSet)
	// Named changes the CloneSet with respect to any one of its Pods.
	Named func(*apps.CloneSet, string)
	// Pod changes any one of the Pods.
	Pod func(*corev1.Pod)
}

// Fault happens to any one of the Pods, at most once.
type Fault struct {
	What string
	do   func(*explorer, *corev1.Pod)
}

// The faults.
var (
	// Restarts: the container ends, and the kubelet starts it again.
	Restarts = Fault{"the container of a Pod ends", (*explorer).restarts}
	// Evicted: the kubelet fails the Pod.
	Evicted = Fault{"a Pod is evicted", (*explorer).evicted}
	// DeletedByHand: somebody other than the controller deletes the Pod.
	DeletedByHand = Fault{"somebody deletes a Pod", (*explorer).deletedByHand}
	// Orphaned: somebody removes the Pod from its CloneSet.
	Orphaned = Fault{"somebody takes a Pod from its set", (*explorer).orphaned}
	// Touched: somebody writes an unrelated annotation.
	Touched = Fault{"somebody annotates a Pod", (*explorer).touched}
)

// actor is who makes a transition.
type actor uint8

// The actors. Those before user are fair: what they can do, they eventually do.
const (
	byPass actor = iota
	byKubelet
	byOperator
	byTime
	byUser
	byFault
	byCrash
)

func (a actor) fair() bool { return a < byUser }

// doing is what somebody other than the controller does in a state.
type doing struct {
	actor actor
	do    func()
}

// happening is the result of a doing.
type happening struct {
	actor actor
	next  *cluster
	// woken reports whether the controller gets an event.
	woken bool
	told  []string
}

// happenings lists all that others than the controller can do in a state.
func (x *explorer) happenings(c *cluster) []happening {
	if c.flight != nil && x.model.Interfere >= 0 && int(c.flight.events) >= x.model.Interfere {
		return nil
	}
	var out []happening
	x.load(c)
	for _, e := range x.events(c) {
		x.load(c)
		e.do()
		h := happening{actor: e.actor, woken: x.woken(), next: &cluster{
			objects: objects(x.server.objects).clone(), running: maps.Clone(x.running), wishes: x.wishes, faults: x.faults, flight: c.flight,
		}}
		if c.flight != nil && x.model.Interfere >= 0 {
			f := *c.flight
			f.events++
			h.next.flight = &f
		}
		h.told = x.tellEvent()
		out = append(out, h)
	}
	return out
}

func (x *explorer) tellEvent() []string {
	var out []string
	if !x.telling {
		return nil
	}
	for _, c := range x.commits {
		if text := describe(c); text != "" {
			out = append(out, text)
		}
	}
	if len(out) == 0 && x.note != "" {
		out = append(out, x.note)
	}
	return out
}

// woken reports whether one of the latest commits triggers a pass.
func (x *explorer) woken() bool {
	return slices.ContainsFunc(x.commits, func(c *Commit) bool {
		old, okOld := c.Old.(*corev1.Pod)
		pod, okNew := c.New.(*corev1.Pod)
		if !okOld || !okNew { // the CloneSet, or a Pod that is created or removed
			return true
		}
		return plan.Digest(old) != plan.Digest(pod)
	})
}

func (x *explorer) events(c *cluster) []doing {
	var out []doing
	for _, object := range x.server.list(Pods) {
		pod, _ := object.(*corev1.Pod)
		out = append(out, x.kubeletEvents(pod)...)
		if change := x.sim.operator.answer(pod); change != nil {
			out = append(out, doing{byOperator, func() { x.sim.operator.give(client.ObjectKeyFromObject(pod), pod.UID, "", change) }})
		}
	}
	if x.model.Timed && c.flight == nil {
		out = append(out, doing{byTime, x.tick})
	}
	out = append(out, x.wishEvents()...)
	return append(out, x.faultEvents()...)
}

// kubeletEvents are the next steps of a Pod's kubelet and of the scheduler.
func (x *explorer) kubeletEvents(pod *corev1.Pod) []doing {
	step := func(do func(*corev1.Pod)) []doing { return []doing{{byKubelet, func() { do(pod) }}} }
	switch {
	case pod.DeletionTimestamp != nil:
		if pod.Spec.NodeName == "" || *pod.DeletionGracePeriodSeconds == 0 {
			return nil // it waits for its finalizers
		}
		return step(x.ends)
	case pod.Spec.NodeName == "":
		return step(x.scheduled)
	case pod.Status.Phase == corev1.PodFailed:
		return nil
	case x.model.Slow:
		return x.slowEvents(pod, step)
	}
	if run := x.running[pod.UID]; run.generation == pod.Generation && run.up && x.reported(pod) {
		return nil
	}
	return step(func(pod *corev1.Pod) { x.syncs(pod); x.starts(pod); x.reports(pod) })
}

// slowEvents are the events of a kubelet that does one thing at a time.
func (x *explorer) slowEvents(pod *corev1.Pod, step func(func(*corev1.Pod)) []doing) []doing {
	var out []doing
	run := x.running[pod.UID]
	if run.generation != pod.Generation {
		out = append(out, step(x.syncs)...)
	}
	if run.generation == 0 {
		return out
	}
	if !run.up {
		out = append(out, step(x.starts)...)
	}
	if !x.reported(pod) {
		out = append(out, step(x.reports)...)
	}
	return out
}

func (x *explorer) scheduled(pod *corev1.Pod) {
	x.sim.nodes.write("scheduler", client.ObjectKeyFromObject(pod), "", func(pod *corev1.Pod) { pod.Spec.NodeName = "node-0" })
}

// syncs makes the kubelet read the spec; it stops a container with another image.
func (x *explorer) syncs(pod *corev1.Pod) {
	run := x.running[pod.UID]
	run.generation = pod.Generation
	if image := pod.Spec.Containers[0].Image; !run.up || run.image != image {
		run.up, run.starting = false, image
	}
	x.running[pod.UID] = run
	x.note = fmt.Sprintf("the kubelet reads the spec of Pod %s", pod.Name)
}

// starts completes the start of the container.
func (x *explorer) starts(pod *corev1.Pod) {
	run := x.running[pod.UID]
	if run.up {
		return
	}
	run.up, run.image, run.starting = true, run.starting, ""
	run.id = x.freshID(pod)
	x.running[pod.UID] = run
	x.note = fmt.Sprintf("the kubelet starts %s in Pod %s", run.image, pod.Name)
}

// freshID returns a container ID that nobody knows yet.
func (x *explorer) freshID(pod *corev1.Pod) string {
	known := fmt.Sprint(x.running[pod.UID].id, pod.Status.ContainerStatuses, pod.Annotations)
	if x.flight != nil {
		for _, object := range x.flight.base[Pods] {
			known += fmt.Sprint(object.(*corev1.Pod).Status.ContainerStatuses)
		}
		for i := range x.flight.results {
			for _, object := range x.flight.results[i].all() {
				if pod, ok := object.(*corev1.Pod); ok {
					known += fmt.Sprint(pod.Status.ContainerStatuses, pod.Annotations)
				}
			}
		}
	}
	for n := 1; ; n++ {
		if id := fmt.Sprintf("containerd://%d", n); !strings.Contains(known, id) {
			return id
		}
	}
}

func (x *explorer) reported(pod *corev1.Pod) bool {
	after := pod.DeepCopy()
	x.status(after)
	return equality.Semantic.DeepEqual(pod.Status, after.Status)
}

func (x *explorer) reports(pod *corev1.Pod) {
	x.sim.nodes.write("kubelet", client.ObjectKeyFromObject(pod), "status", x.status)
}

// status writes what the kubelet knows now into a Pod.
func (x *explorer) status(pod *corev1.Pod) {
	run := x.running[pod.UID]
	if run.up {
		pod.Status.Phase = corev1.PodRunning
	}
	started := run.up
	status := corev1.ContainerStatus{
		Name: pod.Spec.Containers[0].Name, Ready: run.up, Started: &started, ContainerID: run.id, Image: run.image,
	}
	if run.id != "" {
		status.ImageID = imageID(run.image)
	}
	if run.up {
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(startedAt(pod, run.id))}
	} else {
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	pod.Status.ObservedGeneration = run.generation
	setPodCondition(pod, corev1.ContainersReady, run.up, epoch)
	setPodCondition(pod, corev1.PodReady, run.up && gatesOpen(pod) && pod.DeletionTimestamp == nil, epoch)
}

// startedAt keeps the start time of a container that was reported before.
func startedAt(pod *corev1.Pod, id string) time.Time {
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; c.ContainerID == id && c.State.Running != nil {
			return c.State.Running.StartedAt.Time
		}
	}
	return epoch
}

func (x *explorer) ends(pod *corev1.Pod) {
	run := x.running[pod.UID]
	run.up = false
	x.running[pod.UID] = run
	_ = x.server.remove("kubelet", Pods, client.ObjectKeyFromObject(pod), removal{uid: pod.UID, now: true})
}

// past is the time before the run: whatever was young becomes old enough for every
// timeout to have passed.
var past = epoch.Add(-time.Hour)

// tick lets more time pass than any timeout in the set.
func (x *explorer) tick() {
	x.note = "time goes by"
	older := func(text string) string {
		return strings.ReplaceAll(text, epoch.Format(time.RFC3339), past.Format(time.RFC3339))
	}
	for _, kind := range []Kind{Sets, Pods} {
		for at, object := range x.server.objects[kind] {
			aged := rewrite(object, older)
			x.server.objects[kind][at] = aged
		}
	}
}

func (x *explorer) wishEvents() []doing {
	if int(x.wishes) >= len(x.model.Wishes) {
		return nil
	}
	wish := &x.model.Wishes[x.wishes]
	if wish.Set != nil {
		return []doing{{byUser, func() { x.edit(wish.Set) }}}
	}
	var out []doing
	for _, pod := range x.sim.Pods() {
		out = append(out, doing{byUser, func() {
			if wish.Named != nil {
				x.edit(func(set *apps.CloneSet) { wish.Named(set, pod.Name) })
				return
			}
			x.wishes++
			x.sim.nodes.write("user", client.ObjectKeyFromObject(pod), "", wish.Pod)
		}})
	}
	return out
}

func (x *explorer) edit(change func(*apps.CloneSet)) {
	x.wishes++
	x.sim.Edit("", change)
}

func (x *explorer) faultEvents() []doing {
	var out []doing
	for i, fault := range x.model.Faults {
		if x.faults&(1<<i) != 0 {
			continue
		}
		for _, pod := range x.sim.Pods() {
			out = append(out, doing{byFault, func() {
				x.faults |= 1 << i
				x.note = fault.What + ": " + pod.Name
				fault.do(x, pod)
			}})
		}
	}
	return out
}

func (x *explorer) restarts(pod *corev1.Pod) {
	run := x.running[pod.UID]
	if !run.up || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed {
		return
	}
	run.up, run.starting = false, run.image
	x.running[pod.UID] = run
	if !x.model.Slow {
		x.reports(pod)
	}
}

func (x *explorer) evicted(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" {
		return
	}
	x.sim.nodes.write("kubelet", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) {
		pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted"
		setPodCondition(pod, corev1.PodReady, false, epoch)
	})
}

func (x *explorer) deletedByHand(pod *corev1.Pod) {
	_ = x.server.remove("user", Pods, client.ObjectKeyFromObject(pod), removal{})
}

func (x *explorer) orphaned(pod *corev1.Pod) {
	x.sim.nodes.write("user", client.ObjectKeyFromObject(pod), "", func(pod *corev1.Pod) { pod.OwnerReferences = nil })
}

func (x *explorer) touched(pod *corev1.Pod) {
	x.sim.nodes.write("user", client.ObjectKeyFromObject(pod), "", func(pod *corev1.Pod) { pod.Annotations["other/note"] = "x" })
}
