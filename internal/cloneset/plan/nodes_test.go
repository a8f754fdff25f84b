// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestLeaveNodesTaints: which nodes Pods leave.
func TestLeaveNodesTaints(t *testing.T) {
	taint := func(key string, effect corev1.TaintEffect) []corev1.Taint {
		return []corev1.Taint{{Key: key, Effect: effect}}
	}
	for _, test := range []struct {
		name              string
		node              corev1.NodeSpec
		cordoned, tainted string
	}{
		{"stays", corev1.NodeSpec{}, "", ""},
		{"cordoned", corev1.NodeSpec{Unschedulable: true}, corev1.TaintNodeUnschedulable, ""},
		{"cordoned, and the node controller knows",
			corev1.NodeSpec{Unschedulable: true, Taints: taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)}, corev1.TaintNodeUnschedulable, ""},
		{"uncordoned, and it does not know yet", corev1.NodeSpec{Taints: taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)}, "", ""},
		{"the cluster autoscaler removes it", corev1.NodeSpec{Taints: taint("ToBeDeletedByClusterAutoscaler", corev1.TaintEffectNoSchedule)},
			"ToBeDeletedByClusterAutoscaler", "ToBeDeletedByClusterAutoscaler"},
		{"the cluster autoscaler considers it", corev1.NodeSpec{Taints: taint("DeletionCandidateOfClusterAutoscaler", corev1.TaintEffectPreferNoSchedule)}, "", ""},
		{"Karpenter", corev1.NodeSpec{Taints: taint("karpenter.sh/disrupted", corev1.TaintEffectNoSchedule)}, "karpenter.sh/disrupted", "karpenter.sh/disrupted"},
		{"Karpenter before 1.0", corev1.NodeSpec{Taints: taint("karpenter.sh/disruption", corev1.TaintEffectNoSchedule)}, "karpenter.sh/disruption", "karpenter.sh/disruption"},
		{"out of service", corev1.NodeSpec{Taints: taint(corev1.TaintNodeOutOfService, corev1.TaintEffectNoExecute)}, corev1.TaintNodeOutOfService, corev1.TaintNodeOutOfService},
		{"does not answer", corev1.NodeSpec{Taints: taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)}, "", ""},
		{"only a preference", corev1.NodeSpec{Taints: taint("karpenter.sh/disrupted", corev1.TaintEffectPreferNoSchedule)}, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			for leave, want := range map[LeaveNodes]string{LeaveCordoned: test.cordoned, LeaveTainted: test.tainted, LeaveNever: ""} {
				var keys []string
				for _, taint := range leave.Taints(&corev1.Node{Spec: test.node}) {
					keys = append(keys, taint.Key)
				}
				if got := strings.Join(keys, " "); got != want {
					t.Errorf("%s: taints %q, want %q", leave, got, want)
				}
			}
		})
	}
}
