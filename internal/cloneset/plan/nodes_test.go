// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/scenariotest"
)

// nodeWords are what can be said about a node.
var nodeWords = map[string]func(*corev1.Node, string){
	"cordoned": func(n *corev1.Node, _ string) { n.Spec.Unschedulable = true },
	"taint": func(n *corev1.Node, about string) {
		key, effect, _ := strings.Cut(about, " ")
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffect(effect)})
	},
}

// TestLeaveNodesTaints: which nodes Pods leave.
func TestLeaveNodesTaints(t *testing.T) {
	scenariotest.Run(t, "testdata/taints.txt", func(_ *testing.T, lines []string) (out []string) {
		node := said(nodeWords, &corev1.Node{}, strings.TrimPrefix(strings.TrimPrefix(lines[0], "Node"), " "))
		for _, leave := range []LeaveNodes{LeaveCordoned, LeaveTainted, LeaveNever} {
			for _, taint := range leave.Taints(node) {
				out = append(out, fmt.Sprint(leave, " ", taint.Key))
			}
		}
		return out
	})
}
