// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
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

// cordoned is a snapshot in which Pods leave these nodes.
func cordoned(nodes ...string) option {
	return func(s *Snapshot) {
		s.GoingNodes = map[string][]corev1.Taint{}
		for _, name := range nodes {
			s.GoingNodes[name] = LeaveCordoned.Taints(&corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}})
		}
	}
}

func tolerating(toleration corev1.Toleration) podOption {
	return func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, toleration) }
}

// drainNode cordons the node of so many Pods of a set, plays it to the end, and returns how many
// rounds that took and how few Pods served meanwhile.
func drainNode(t *testing.T, pods int, options ...option) (s *Snapshot, rounds, fewest int) {
	s = snap(pods, append([]option{hooks(preDelete()), cordoned("n1")}, options...)...)
	for i := range pods {
		with(pod(fmt.Sprintf("p%03d", i), 1, finalizers(keyDelete)))(s)
	}
	rounds, fewest = 0, pods
	runRounds(t, s, func() {
		rounds++
		fewest = min(fewest, tally(s).Available)
	})
	return s, rounds, fewest
}

// left counts the Pods on the node n1.
func left(s *Snapshot) int {
	return len(slices.DeleteFunc(slices.Clone(s.Pods), func(p *corev1.Pod) bool { return p.Spec.NodeName != "n1" }))
}

// TestNodeDrains: a node with many Pods drains as fast as one with a single Pod, and with a
// surge no Pod less serves meanwhile.
func TestNodeDrains(t *testing.T) {
	surge := []option{maxUnavailable(0), maxSurge(50), starts(64)}
	_, alone, _ := drainNode(t, 1, surge...)
	s, rounds, fewest := drainNode(t, 50, surge...)
	if left(s) > 0 || len(s.Pods) != 50 || fewest < 50 || rounds != alone {
		t.Errorf("%d of %d Pods left on the node, at least %d served, %d rounds, want those of one Pod: %d", left(s), len(s.Pods), fewest, rounds, alone)
	}
	if s, _, fewest := drainNode(t, 10, maxUnavailable(3)); left(s) > 0 || len(s.Pods) != 10 || fewest < 7 {
		t.Errorf("without a surge %d Pods are left on the node, at least %d served", left(s), fewest)
	}
}

// TestSingleNodeStays: without a place to go to, only as many Pods leave as the budget
// allows; when the node is uncordoned, those that are left stay.
func TestSingleNodeStays(t *testing.T) {
	for name, options := range map[string][]option{"alone": {maxUnavailable(3)}, "with a surge": {maxUnavailable(3), maxSurge(2)}} {
		s, _, fewest := drainNode(t, 10, append(options, cordoned("n1", "n2"))...)
		if left(s) != 7 || fewest != 7 {
			t.Errorf("%s: %d Pods are left on the node, at least %d served, want 7", name, left(s), fewest)
		}
		cordoned()(s)
		runToEnd(t, s)
		if got := tally(s); left(s) != 10 || got.Available != 10 {
			t.Errorf("%s, uncordoned: %d Pods on the node, %+v", name, left(s), got)
		}
	}
}
