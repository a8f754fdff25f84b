// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/test/model"
)

func nodeName(node int) string { return fmt.Sprintf("node-%d", node) }

// cordon cordons a node, or uncordons it. Only nodes that have ever been cordoned are
// objects of the server.
func (n *nodes) cordon(node int, yes bool) {
	at := key("", nodeName(node))
	if n.cordoned(at.Name) == yes {
		return
	}
	n.World.say("nodes", "%s is cordoned: %t", at.Name, yes)
	if n.Server.Objects[model.Nodes][at] == nil {
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: at.Name}, Spec: corev1.NodeSpec{Unschedulable: yes}}
		if _, err := n.Server.Create("nodes", object, false); err != nil {
			n.World.fail("setup", "create a node: %v", err)
		}
		return
	}
	model.Change(n.Server, "nodes", at, "", func(node *corev1.Node) { node.Spec.Unschedulable = yes })
}

func (n *nodes) cordoned(name string) bool {
	node := model.Get[*corev1.Node](n.Server.Objects, key("", name))
	return node != nil && node.Spec.Unschedulable
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
	for at, object := range p.caches[model.Nodes].Objects {
		if node, ok := object.(*corev1.Node); ok && node.Spec.Unschedulable {
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
