// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/model"
)

// faults happen to any one of the Pods, each at most once.
var faults = map[string]func(*explorer, *corev1.Pod){
	"Restarts":      (*explorer).restarts, // its container exits, and the kubelet restarts it
	"Evicted":       (*explorer).evicted,
	"DeletedByHand": func(x *explorer, pod *corev1.Pod) { _ = x.server.Delete("user", pod) },
	"Orphaned":      func(x *explorer, pod *corev1.Pod) { x.sim.orphan(pod) },
	// Touched: somebody annotates it, about something else.
	"Touched": func(x *explorer, pod *corev1.Pod) {
		x.sim.changePod(pod, func(pod *corev1.Pod) { pod.Annotations["other/note"] = "x" })
	},
}

// actor is the one who makes a transition.
type actor uint8

// The actors. The ones before user are fair: each action that they can take, they eventually take.
const (
	byPass actor = iota
	byKubelet
	byOperator
	byCollector
	byTime
	byUser
	byFault
	byCrash
)

func (a actor) fair() bool { return a < byUser }

// action is an action in a state that is not the controller's.
type action struct {
	actor actor
	do    func()
	// requeues means that the next pass needs no event: if the API server refuses writes, the
	// controller requeues by itself.
	requeues bool
}

// transition is the result of an action.
type transition struct {
	actor actor
	next  *cluster
	// woken reports whether the controller gets an event.
	woken bool
	story story
}

// transitions lists the transitions from a state that are not the controller's.
func (x *explorer) transitions(c *cluster) []transition {
	pass := c.pass
	if pass != nil && !x.model.Unbounded {
		if int(pass.events) >= max(x.model.Interfere, 1) {
			return nil
		}
		disturbed := *pass
		disturbed.events++
		pass = &disturbed
	}
	var out []transition
	x.load(c)
	for _, e := range x.actions(c) {
		x.load(c)
		if e.do(); e.actor == byCollector && len(x.commits) == 0 {
			continue // it has done what is due
		}
		out = append(out, transition{actor: e.actor, next: x.now(pass), woken: e.requeues || x.woken(), story: x.sim.World.story})
	}
	return out
}

// woken reports whether one of the latest commits triggers a pass.
func (x *explorer) woken() bool {
	return slices.ContainsFunc(x.commits, func(c *model.Commit) bool {
		if c.Kind == model.Nodes {
			return unschedulable(c.Old) != unschedulable(c.New)
		}
		old, pod := c.Pods() // neither of the CloneSet; one of a Pod that is created or removed
		if old != nil && pod != nil && pulls(pod) {
			was, _, _ := plan.PullOf(old)
			is, _, _ := plan.PullOf(pod)
			return was != is
		}
		return old == nil || pod == nil || !plan.Alike(old, pod)
	})
}

func (x *explorer) actions(c *cluster) []action {
	var out []action
	o := operator{x.sim}
	for _, pod := range model.List[*corev1.Pod](x.server.Objects) {
		if pulls(pod) {
			out = append(out, x.pullActions(pod)...)
			continue
		}
		out = append(out, x.kubeletActions(pod)...)
		if change := o.answer(pod); change != nil {
			out = append(out, action{actor: byOperator, do: func() { o.give(client.ObjectKeyFromObject(pod), pod.UID, "", change) }})
		}
	}
	for _, node := range model.List[*corev1.Node](x.server.Objects) {
		out = append(out, x.listActions(node)...)
	}
	if x.model.Timed && c.pass == nil {
		out = append(out, action{actor: byTime, do: x.tick})
	}
	if goes(x.sim.Set()) {
		out = append(out, action{actor: byCollector, do: func() { collector{x.sim}.collect(x.sim.key, x.uid) }})
	}
	out = append(out, x.editActions()...)
	return append(out, x.faultActions()...)
}

// kubeletActions returns the next steps of a Pod's kubelet and of the scheduler.
func (x *explorer) kubeletActions(pod *corev1.Pod) (out []action) {
	step := func(due bool, do func(*corev1.Pod)) {
		if due {
			out = append(out, action{actor: byKubelet, do: func() { do(pod) }})
		}
	}
	run := runOf(x.state.running, pod)
	reads := run.Generation != pod.Generation
	switch next := model.Next(pod); {
	case next == model.Stop:
		step(true, x.ends)
	case next == model.Bind:
		step(true, x.scheduled)
	case next == model.Sync && x.model.Slow: // one thing at a time
		step(reads, x.syncs)
		step(run.Generation > 0 && !run.Containers[0].Up, x.starts)
		step(run.Generation > 0 && !x.reported(pod), x.reports)
	case next == model.Sync:
		step(reads || !run.Containers[0].Up || !x.reported(pod), func(pod *corev1.Pod) { x.syncs(pod); x.starts(pod); x.reports(pod) })
	}
	return out
}

func (x *explorer) scheduled(pod *corev1.Pod) {
	node := nodeName(0)
	if x.sim.nodes.cordoned(node) {
		node = nodeName(1)
	}
	model.Change(x.server, "scheduler", client.ObjectKeyFromObject(pod), "", func(pod *corev1.Pod) { pod.Spec.NodeName = node })
}

// run returns the running containers of a Pod, to change them.
func (x *explorer) run(pod *corev1.Pod) *model.Run {
	run := runOf(x.state.running, pod).Clone()
	x.state.running[pod.UID] = run
	return run
}

// syncs makes the kubelet read the spec; it stops a container with another image.
func (x *explorer) syncs(pod *corev1.Pod) {
	x.run(pod).Sync(pod, model.Node{})
	x.sim.World.say("kubelet", "reads the spec of Pod %s", pod.Name)
}

// starts completes the start of the container.
func (x *explorer) starts(pod *corev1.Pod) {
	run := x.run(pod)
	c := &run.Containers[0]
	if c.Up {
		return
	}
	run.Start(0, x.freshID(pod), epoch)
	c.Restarts = 0 // their number makes no difference
	x.gets(plan.ImageOnNode{Node: pod.Spec.NodeName, Image: c.Image})
	x.sim.World.say("kubelet", "starts %s in Pod %s", c.Image, pod.Name)
}

// freshID returns an unused container ID.
func (x *explorer) freshID(pod *corev1.Pod) string {
	known := fmt.Sprint(runOf(x.state.running, pod).Containers, pod.Status.ContainerStatuses, pod.Annotations)
	if pass := x.state.pass; pass != nil {
		for _, pod := range model.List[*corev1.Pod](pass.base) {
			known += fmt.Sprint(pod.Status.ContainerStatuses)
		}
		for _, r := range pass.results {
			for _, object := range r.all() {
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
	runOf(x.state.running, pod).Report(pod, model.Node{})(after, epoch)
	return equality.Semantic.DeepEqual(pod.Status, after.Status)
}

func (x *explorer) reports(pod *corev1.Pod) {
	model.Change(x.server, "kubelet", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) {
		runOf(x.state.running, pod).Report(pod, model.Node{})(pod, epoch)
	})
}

func (x *explorer) ends(pod *corev1.Pod) {
	x.run(pod).End()
	_ = x.server.Delete("kubelet", pod, client.Preconditions{UID: &pod.UID}, client.GracePeriodSeconds(0))
}

// past is a time before the run, so long ago that every timeout has passed since.
var past = epoch.Add(-time.Hour)

// tick lets more time pass than any timeout in the set.
func (x *explorer) tick() {
	x.sim.World.say("time", "goes by")
	older := func(text string) string {
		return strings.ReplaceAll(text, epoch.Format(time.RFC3339), past.Format(time.RFC3339))
	}
	for _, kind := range []model.Kind{model.CloneSets, model.Pods} {
		for at, object := range x.server.Objects[kind] {
			x.server.Objects[kind][at] = rewrite(object, older)
		}
	}
	for _, pod := range x.sim.Pods() {
		for i := range x.run(pod).Containers {
			x.state.running[pod.UID].Containers[i].Since = past
		}
	}
}

func (x *explorer) editActions() []action {
	if int(x.state.edits) >= len(x.model.Edits) {
		return nil
	}
	edit := x.model.Edits[x.state.edits]
	do := podDeeds[edit]
	if do == nil {
		return []action{{actor: byUser, do: func() { x.state.edits++; x.sim.happen("", edit) }, requeues: refusedBy(edit) != ""}}
	}
	return list.Map(x.sim.Pods(), func(pod *corev1.Pod) action {
		return action{actor: byUser, do: func() { x.state.edits++; do(x.sim, pod) }}
	})
}

func (x *explorer) faultActions() []action {
	var out []action
	for i, fault := range x.model.Faults {
		if x.state.faults&(1<<i) != 0 {
			continue
		}
		for _, pod := range x.sim.Pods() {
			out = append(out, action{actor: byFault, do: func() {
				x.state.faults |= 1 << i
				x.sim.World.say("fate", "%s: %s", fault, pod.Name)
				faults[fault](x, pod)
			}})
		}
	}
	return out
}

func (x *explorer) restarts(pod *corev1.Pod) {
	run := x.run(pod)
	if model.Next(pod) != model.Sync || len(run.Containers) == 0 || !run.Containers[0].Up {
		return
	}
	run.End()
	run.Containers[0].Starting = run.Containers[0].Image
	if !x.model.Slow {
		x.reports(pod)
	}
}

func (x *explorer) evicted(pod *corev1.Pod) {
	if pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" {
		model.Change(x.server, "kubelet", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) { model.Evict(pod, epoch) })
	}
}

// The rest of this file is about a node that lacks images, in models that are Cold.

// annotationHas on a node names the images that it has. Its status lists them later.
const annotationHas = "other/has"

// gets gives a node an image.
func (x *explorer) gets(on plan.ImageOnNode) {
	if x.cold == nil {
		return
	}
	model.Change(x.server, "kubelet", key("", on.Node), "", func(node *corev1.Node) {
		all := append(strings.Fields(node.Annotations[annotationHas]), on.Image)
		slices.Sort(all)
		node.Annotations[annotationHas] = strings.Join(slices.Compact(all), " ")
	})
}

// warm records which images the nodes of a state have.
func (x *explorer) warm() {
	clear(x.sim.images.has)
	for _, node := range model.List[*corev1.Node](x.server.Objects) {
		for image := range strings.FieldsSeq(node.Annotations[annotationHas]) {
			x.sim.images.has[plan.ImageOnNode{Node: node.Name, Image: image}] = true
		}
	}
}

// pullActions returns the next steps of the kubelet with a pull Pod.
func (x *explorer) pullActions(pod *corev1.Pod) []action {
	switch {
	case pod.DeletionTimestamp != nil:
		return []action{{actor: byKubelet, do: func() { x.ends(pod) }}}
	case pod.Status.Phase == corev1.PodSucceeded:
		return nil
	}
	return []action{{actor: byKubelet, do: func() {
		x.gets(plan.PulledBy(pod))
		x.sim.nodes.status(pod, func(s *corev1.PodStatus) { s.Phase = corev1.PodSucceeded })
	}}}
}

// listActions returns actions with which a node lists images that it has.
func (x *explorer) listActions(node *corev1.Node) []action {
	has := strings.Fields(node.Annotations[annotationHas])
	if len(has) == len(node.Status.Images) {
		return nil
	}
	return []action{{actor: byKubelet, do: func() {
		model.Change(x.server, "kubelet", key("", node.Name), "", func(node *corev1.Node) {
			node.Status.Images = list.Map(has, listed)
		})
	}}}
}
