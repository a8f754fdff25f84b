// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/model"
)

// NodeConfig configures the nodes. All durations are the longest that a draw can give;
// the shortest is a tenth.
type NodeConfig struct {
	Nodes int
	// Notice is how long a kubelet takes to see a change to a Pod.
	Notice time.Duration
	// Start is how long a container takes to start, Stop how long it takes to end.
	Start, Stop time.Duration
	// Report is how long a status takes from the kubelet to the server; it describes
	// the moment when it was written.
	Report time.Duration
	// Schedule is how long a Pod waits for a node.
	Schedule time.Duration
	// Resize is how long it takes to change a container's resources.
	Resize time.Duration
	// Pull is how long a node takes to pull an image. 0: every node has every image, and the
	// controller has none pulled first.
	Pull time.Duration
}

// nodes has the kubelets and the scheduler: they take the steps of the model, each after some time.
type nodes struct {
	*Simulation
	model.Node
	pods map[types.UID]*running
	// down holds the nodes whose kubelet is dead.
	down map[string]bool
	// rejecting holds the nodes that do not admit new Pods.
	rejecting map[string]bool
	// containers counts all containers ever started, placed all Pods with a node.
	containers, placed int
}

// running has the containers of a Pod that a kubelet runs, and its next tasks.
type running struct {
	model.Run
	planned, ending, pulling bool
	// reports counts the reports; reported is the last one that arrived.
	reports, reported int
}

func (s *Simulation) span(most time.Duration) time.Duration { return s.World.between(most/10, most) }

// observe receives every commit.
func (n *nodes) observe(c *model.Commit) {
	old, pod := c.Pods()
	switch {
	case pod == nil:
		if old != nil {
			delete(n.pods, old.UID)
		}
	case pod.Spec.NodeName != "":
		n.notice(pod)
	case old == nil:
		at := client.ObjectKeyFromObject(pod)
		n.World.after(n.span(n.config.Nodes.Schedule), func() { n.schedule(at) })
	}
}

// schedule assigns a node to a Pod.
func (n *nodes) schedule(at types.NamespacedName) {
	pod := model.Get[*corev1.Pod](n.Server.Objects, at)
	if pod == nil {
		return
	}
	place, found := n.place()
	if !found || !mountable(n.Server, pod) {
		if pod.DeletionTimestamp == nil {
			n.World.after(n.span(max(n.config.Nodes.Schedule, time.Second)), func() { n.schedule(at) })
		}
		return
	}
	n.placed = place
	node := nodeName(place % max(n.config.Nodes.Nodes, 1))
	model.Change(n.Server, "scheduler", at, "", func(pod *corev1.Pod) {
		if model.Next(pod) == model.Bind {
			pod.Spec.NodeName = node
		}
	})
}

// notice plans a sync of a Pod.
func (n *nodes) notice(pod *corev1.Pod) {
	r := n.pods[pod.UID]
	if r == nil {
		r = &running{}
		n.pods[pod.UID] = r
	}
	if r.planned {
		return
	}
	r.planned = true
	n.later(pod, n.config.Nodes.Notice, func(pod *corev1.Pod, r *running) {
		r.planned = false
		if !n.down[pod.Spec.NodeName] {
			n.sync(pod, r)
		}
	})
}

// later does something with a Pod that is still there.
func (n *nodes) later(pod *corev1.Pod, most time.Duration, do func(*corev1.Pod, *running)) {
	uid, at := pod.UID, client.ObjectKeyFromObject(pod)
	n.World.after(n.span(most), func() {
		if pod := model.Get[*corev1.Pod](n.Server.Objects, at); pod != nil && pod.UID == uid && n.pods[uid] != nil {
			do(pod, n.pods[uid])
		}
	})
}

// sync makes one sync of a Pod by its kubelet.
func (n *nodes) sync(pod *corev1.Pod, r *running) {
	if pulls(pod) {
		n.pull(pod, r)
		return
	}
	switch model.Next(pod) {
	case model.Stop:
		n.stop(pod, r)
	case model.Sync:
		if n.rejecting[pod.Spec.NodeName] && len(r.Containers) == 0 {
			n.reject(pod)
			return
		}
		n.begin(pod, r.Sync(pod, n.Node))
		n.report(pod, r)
	}
}

// begin plans the end of tasks.
func (n *nodes) begin(pod *corev1.Pod, tasks []model.Task) {
	for _, task := range tasks {
		if task.Image == "" {
			n.later(pod, n.config.Nodes.Resize, func(pod *corev1.Pod, r *running) { n.resized(pod, r, task) })
			continue
		}
		fetch := n.fetch(plan.ImageOnNode{Node: pod.Spec.NodeName, Image: task.Image})
		n.later(pod, n.config.Nodes.Start+fetch, func(pod *corev1.Pod, r *running) { n.started(pod, r, task) })
	}
}

// started ends the start of a container.
func (n *nodes) started(pod *corev1.Pod, r *running, task model.Task) {
	c := &r.Containers[task.Container]
	switch {
	case c.Starting != task.Image:
		return
	case n.down[pod.Spec.NodeName]:
		c.Starting = "" // starts again when the kubelet is back
		return
	case !n.Broken[task.Image]: // a broken image lets it wait until that is fixed
		n.containers++
		n.fetched(plan.ImageOnNode{Node: pod.Spec.NodeName, Image: task.Image})
		r.Start(task.Container, fmt.Sprintf("containerd://%04d", n.containers), n.World.now())
	}
	n.report(pod, r)
}

// resized ends a resize.
func (n *nodes) resized(pod *corev1.Pod, r *running, task model.Task) {
	if n.down[pod.Spec.NodeName] {
		r.Containers[task.Container].Resizing = false
		return
	}
	if tasks, done := r.Resize(task.Container, pod, n.Node); done {
		n.begin(pod, tasks)
		n.report(pod, r)
	}
}

// report writes the status as the kubelet knows it now, after a delay.
func (n *nodes) report(pod *corev1.Pod, r *running) {
	report := r.Report(pod, n.Node)
	r.reports++
	order := r.reports
	n.later(pod, n.config.Nodes.Report, func(pod *corev1.Pod, r *running) {
		if n.down[pod.Spec.NodeName] || order < r.reported || pod.Status.Phase == corev1.PodFailed {
			return
		}
		r.reported = order
		model.Change(n.Server, "kubelet", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) { report(pod, n.World.now()) })
	})
}

// stop stops the containers of a Pod that is being deleted, and then removes it.
func (n *nodes) stop(pod *corev1.Pod, r *running) {
	if r.ending {
		return
	}
	r.ending = true
	n.later(pod, n.config.Nodes.Stop, func(pod *corev1.Pod, r *running) {
		if n.down[pod.Spec.NodeName] {
			r.ending = false
			return
		}
		r.End()
		_ = n.Server.Delete("kubelet", pod, client.Preconditions{UID: &pod.UID}, client.GracePeriodSeconds(0))
	})
}

// on lists the Pods of a node.
func (n *nodes) on(node string) []*corev1.Pod {
	return slices.DeleteFunc(model.List[*corev1.Pod](n.Server.Objects), func(pod *corev1.Pod) bool { return pod.Spec.NodeName != node })
}

// nodeDown kills a kubelet: its Pods become not ready, and do not change until it is back.
func (n *nodes) nodeDown(node int) {
	name := nodeName(node)
	if n.down[name] {
		return
	}
	n.World.say("nodes", "%s is not ready", name)
	n.down[name] = true
	for _, pod := range n.on(name) {
		if pod.Status.Phase == corev1.PodRunning {
			model.Change(n.Server, "nodes", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) {
				model.SetCondition(pod, corev1.PodReady, false, n.World.now())
			})
		}
	}
}

// nodeUp brings a kubelet back; its containers kept running.
func (n *nodes) nodeUp(node int) {
	name := nodeName(node)
	if !n.down[name] {
		return
	}
	n.World.say("nodes", "%s is back", name)
	delete(n.down, name)
	for _, pod := range n.on(name) {
		n.notice(pod)
	}
}

// restart restarts the containers of a Pod with the image they have.
func (n *nodes) restart(pod *corev1.Pod) {
	r := n.pods[pod.UID]
	if r == nil || len(r.Containers) == 0 || pod.DeletionTimestamp != nil || n.down[pod.Spec.NodeName] {
		return
	}
	n.World.say("nodes", "the containers of Pod %s crash", pod.Name)
	r.End()
	n.report(pod, r)
	n.notice(pod)
}

// evict fails a Pod.
func (n *nodes) evict(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed {
		return
	}
	n.World.say("nodes", "Pod %s is evicted", pod.Name)
	if r := n.pods[pod.UID]; r != nil {
		r.End()
		r.forget()
	}
	model.Change(n.Server, "kubelet", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) { model.Evict(pod, n.World.now()) })
}

// reject fails a Pod like a kubelet that does not admit it.
func (n *nodes) reject(pod *corev1.Pod) {
	n.World.say("nodes", "Pod %s is rejected", pod.Name)
	model.Change(n.Server, "kubelet", client.ObjectKeyFromObject(pod), "status", func(pod *corev1.Pod) { model.Reject(pod) })
}

// forget makes the kubelet resolve again the images that it waits for.
func (r *running) forget() {
	for i := range r.Containers {
		if c := &r.Containers[i]; !c.Up {
			c.Starting = ""
		}
	}
}

// heal brings all nodes back and lets all images start.
func (n *nodes) heal() {
	for node := range max(n.config.Nodes.Nodes, 1) {
		n.nodeUp(node)
	}
	if _, found := n.place(); !found {
		n.cordon(0, false)
	}
	n.Broken, n.Roomy = map[string]bool{}, true
	n.rejecting = nil
	for _, pod := range model.List[*corev1.Pod](n.Server.Objects) {
		if r := n.pods[pod.UID]; r != nil {
			r.forget()
			n.notice(pod)
		}
	}
}

func nodeName(node int) string { return fmt.Sprintf("node-%d", node) }

// cordon cordons a node, or uncordons it.
func (n *nodes) cordon(node int, yes bool) {
	name := nodeName(node)
	if n.cordoned(name) == yes {
		return
	}
	n.World.say("nodes", "%s is cordoned: %t", name, yes)
	n.change("nodes", name, func(node *corev1.Node) { node.Spec.Unschedulable = yes })
}

// change changes a node, which is an object of the server from its first change on.
func (n *nodes) change(actor, name string, change func(*corev1.Node)) {
	if n.Server.Objects[model.Nodes][key("", name)] == nil {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		change(node)
		must(n.Server.Create(actor, node, false))
		return
	}
	model.Change(n.Server, actor, key("", name), "", change)
}

func (n *nodes) cordoned(name string) bool {
	return unschedulable(n.Server.Objects[model.Nodes][key("", name)])
}

// unschedulable reports whether an object is a node that is cordoned.
func unschedulable(object client.Object) bool {
	node, ok := object.(*corev1.Node)
	return ok && node.Spec.Unschedulable
}

// place returns the node of the next Pod, which is not cordoned; false if there is none.
func (n *nodes) place() (int, bool) {
	all := max(n.config.Nodes.Nodes, 1)
	for place := n.placed + 1; place <= n.placed+all; place++ {
		if !n.cordoned(nodeName(place % all)) {
			return place, true
		}
	}
	return 0, false
}

// resourcesOf describes the resources of all containers.
func resourcesOf(spec *corev1.PodSpec) string {
	all := list.Map(spec.Containers, func(c corev1.Container) string { return model.ResourcesText(c.Resources) })
	return strings.Trim(strings.Join(all, "+"), "+")
}

// priorityOf returns the launch priority of a container.
func priorityOf(c *corev1.Container) (priority int) {
	for _, variable := range c.Env {
		if variable.Name == apps.EnvContainerPriority {
			priority, _ = strconv.Atoi(variable.Value) // 0 if it is no number
		}
	}
	return priority
}

// orderBroken: no container changes while one of a higher priority still has to change
// for the same revision, or has not reached its target; within one update, also not
// while that container is not ready.
func orderBroken(w *podWrite) {
	if !w.changesContainers() || w.old.Spec.NodeName == "" {
		return
	}
	for i := range w.new.Spec.Containers {
		changed := &w.new.Spec.Containers[i]
		if same := &w.old.Spec.Containers[i]; same.Image == changed.Image && model.SameResources(same.Resources, changed.Resources) {
			continue
		}
		for j := range w.old.Spec.Containers {
			first := &w.old.Spec.Containers[j]
			if priorityOf(first) <= priorityOf(changed) {
				continue
			}
			if what := w.notYet(first, j, changed.Name); what != "" {
				w.fail("changes in container %s, but %s, which goes before it, %s", changed.Name, first.Name, what)
			}
		}
	}
}

// startsEarly: a container may start only when all of a higher priority are ready.
func startsEarly(w *podWrite) {
	if w.new == nil {
		return
	}
	for i := range w.new.Spec.Containers {
		c := &w.new.Spec.Containers[i]
		if model.Lacks(w.new, c) != "" || w.old != nil && model.Lacks(w.old, c) == "" {
			continue
		}
		for j := range w.new.Spec.Containers {
			first := &w.new.Spec.Containers[j]
			if priorityOf(first) > priorityOf(c) && (w.old == nil || !model.ContainerStatus(w.old, first.Name).Ready) {
				w.fail("lets container %s start, but %s, which goes before it, is not ready", c.Name, first.Name)
			}
		}
	}
}

// notYet describes what a container that precedes another one still lacks; "" if
// nothing.
func (w *podWrite) notYet(c *corev1.Container, index int, other string) string {
	if t := templateOfPod(w.process.Server, w.new); t != nil && index < len(t.Spec.Containers) {
		if want := &t.Spec.Containers[index]; c.Image != want.Image || !model.SameResources(c.Resources, want.Resources) {
			return "is not of the revision yet"
		}
	}
	if r := w.process.nodes.pods[w.old.UID]; r != nil && r.Lacks(index, c) != "" {
		return r.Lacks(index, c)
	}
	if w.goesOn() && w.begun(c.Name) && !w.begun(other) && !model.ContainerStatus(w.old, c.Name).Ready {
		return "is not ready"
	}
	return ""
}

// begun reports whether a container is due, according to the update's record.
func (w *podWrite) begun(name string) bool {
	state, err := inplace.ParseState(w.old.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil {
		return false
	}
	_, image := state.LastContainerStatuses[name]
	_, resources := state.Resources[name]
	return image || resources
}
