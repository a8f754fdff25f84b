// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/test/model"
)

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

// place is the place of the next Pod, on a node that is not cordoned; false if there is
// none.
func (n *nodes) place() (int, bool) {
	all := max(n.config.Nodes.Nodes, 1)
	for place := n.placed + 1; place <= n.placed+all; place++ {
		if !n.cordoned(nodeName(place % all)) {
			return place, true
		}
	}
	return 0, false
}

// cordonsNode cordons a node, for some time or until the end.
func (s *Simulation) cordonsNode() {
	node := s.World.chance.IntN(max(s.config.Nodes.Nodes, 1))
	s.nodes.cordon(node, true)
	if s.World.roll(0.6) {
		s.World.after(s.World.between(0, pick(s.World, time.Second, time.Minute, 5*time.Minute)), func() { s.nodes.cordon(node, false) })
	}
}

// leaveNodes reports whether a set's Pods leave cordoned nodes.
func leaveNodes(set *apps.CloneSet) bool {
	keepsClaims := len(set.Spec.VolumeClaimTemplates) > 0 && !set.Spec.ScaleStrategy.DisablePVCReuse
	return !lifecycle.FromSpec(set.Spec.Lifecycle).PreDelete.Empty() && !keepsClaims
}

// leftBehind names the cordoned node that a Pod is still on.
func (s *Simulation) leftBehind(pod *corev1.Pod, set *apps.CloneSet) string {
	if leaveNodes(set) && s.nodes.cordoned(pod.Spec.NodeName) {
		return "is still on " + pod.Spec.NodeName + ", which is cordoned"
	}
	return ""
}

// going are the cordoned nodes as a process's cache shows them.
func (p *Process) going() map[string]bool {
	out := map[string]bool{}
	for at, node := range p.caches[model.Nodes].Objects {
		if unschedulable(node) {
			out[at.Name] = true
		}
	}
	return out
}

// leavesNode reports whether the Pod is to leave its node, as far as the pass knew.
func (w *podWrite) leavesNode(pod *corev1.Pod) bool {
	return w.process.pass.going[pod.Spec.NodeName] && leaveNodes(w.set)
}

// doomed reports whether a Pod is to be deleted.
func (w *podWrite) doomed(pod *corev1.Pod) bool {
	return model.State(pod) == apps.StatePreparingDelete || specified(pod, w.set) || w.leavesNode(pod)
}

// namedForNothing: the controller names a Pod for deletion only if the user did, if it
// leaves its node, or if it is recreated for an update.
func namedForNothing(w *podWrite) string {
	was := w.before.find(w.uid())
	if w.old == nil || w.new == nil || was == nil || w.new.Labels[apps.LabelSpecifiedDelete] == w.old.Labels[apps.LabelSpecifiedDelete] {
		return ""
	}
	if of(was, w.update) && !w.doomed(was) {
		return fmt.Sprintf("Pod %s is named for deletion, and nobody asked for that", w.name())
	}
	return ""
}
