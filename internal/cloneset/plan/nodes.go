// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/notice"
)

// LeaveNodes says which nodes Pods leave before they are evicted.
type LeaveNodes string

// The choices.
const (
	// LeaveCordoned: cordoned nodes too, since that is how kubectl drain begins.
	LeaveCordoned LeaveNodes = "cordoned"
	// LeaveTainted: only nodes with a taint or condition that announces their end.
	LeaveTainted LeaveNodes = "tainted"
	// LeaveUrgent: only nodes that go within a short time, whoever objects.
	LeaveUrgent LeaveNodes = "urgent"
	LeaveNever  LeaveNodes = "never"
)

// LeaveChoices returns all choices, those with the most nodes first.
func LeaveChoices() []LeaveNodes {
	return []LeaveNodes{LeaveCordoned, LeaveTainted, LeaveUrgent, LeaveNever}
}

// Taints returns the taints of a node that make Pods leave it. A cordoned node counts as tainted from
// the beginning: the node controller adds the taint a moment later. A condition is a taint with its name.
func (l LeaveNodes) Taints(node *corev1.Node) []corev1.Taint {
	if l == LeaveNever {
		return nil
	}
	var out []corev1.Taint
	if node.Spec.Unschedulable && l == LeaveCordoned {
		out = append(out, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	for _, n := range notice.Of(node) {
		if l != LeaveUrgent || n.Within > 0 {
			out = append(out, n.Taint)
		}
	}
	return out
}

// readNodes records which Pods leave their nodes. They are replaced like Pods that are named for
// deletion, but are not marked before they leave service: if the node stays after all, the Pods still
// on it stay too.
func (p *pass) readNodes() {
	if len(p.GoingNodes) == 0 || !p.movesPods() {
		return
	}
	for _, v := range p.pods {
		if !v.specified {
			v.leavesNode = p.whyLeave(v)
			v.specified = v.leavesNode != ""
		}
	}
}

// movesPods reports whether the set's Pods leave nodes at all. Without a preDelete hook they gain
// nothing, since an eviction replaces them as well. If their claims can be taken over they would lose
// those, because a named deletion deletes claims. If the template names a node, the replacements would
// be created there again.
func (p *pass) movesPods() bool {
	keepsClaims := len(p.Spec.ClaimTemplates) > 0 && !p.Spec.DisableClaimReuse
	return !p.Spec.Hooks.PreDelete.Empty() && !keepsClaims && !pinned(p.Current) && !pinned(p.Update)
}

// pinned reports whether a template names its node.
func pinned(r *revision.Revision) bool {
	spec, _ := r.Template["spec"].(map[string]any)
	return spec["nodeName"] != nil && spec["nodeName"] != ""
}

// whyLeave returns why a Pod is to leave its node; "" if it stays. A Pod that tolerates the
// taint stays: its replacement might come to the same node, over and over.
func (p *pass) whyLeave(v *podState) string {
	for _, taint := range p.GoingNodes[v.node] {
		tolerates := func(t corev1.Toleration) bool { return t.ToleratesTaint(logr.Discard(), &taint, true) }
		switch {
		case slices.ContainsFunc(v.pod.Spec.Tolerations, tolerates):
		case taint.Key == corev1.TaintNodeUnschedulable:
			return fmt.Sprintf("node %s is cordoned", v.node)
		default:
			return fmt.Sprintf("node %s %s", v.node, notice.Text(taint.Key))
		}
	}
	return ""
}
