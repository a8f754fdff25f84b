// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
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

// nodeSet is a set with a preDelete hook whose Pods a, b are on the cordoned node n1, and
// c, d on n2.
func nodeSet(replicas int, options ...option) *Snapshot {
	held := finalizers(keyDelete)
	return snap(replicas, append([]option{hooks(preDelete()), cordoned("n1"),
		with(pod("a", 1, held), pod("b", 1, held), pod("c", 1, held, on("n2")), pod("d", 1, held, on("n2"))),
	}, options...)...)
}

// loneOnNode is a set of a single Pod, which is on the cordoned node.
func loneOnNode(o podOption, options ...option) *Snapshot {
	return snap(1, append([]option{hooks(preDelete()), cordoned("n1"), maxUnavailable(1), with(pod("a", 1, finalizers(keyDelete), o))}, options...)...)
}

const (
	create1 = "create a new Pod (ScaleOut) revision web-r1"
	create2 = "create a new Pod (ScaleOut) revision web-r2"
	leaveA  = "move a (NodeGoes) to PreparingDelete"
	leaveB  = "move b (NodeGoes) to PreparingDelete"
)

// TestNodeGoes: Pods leave a node like Pods that are named for deletion.
func TestNodeGoes(t *testing.T) {
	nothing := func(*corev1.Pod) {}
	cordon := corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}
	otherEffect := corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	noHook := func(s *Snapshot) { s.Spec.Hooks = gates(false); s.Spec.Hooks.PreDelete.Finalizers = nil }
	dropsClaims := func(s *Snapshot) { s.Spec.DisableClaimReuse = true }
	onNode := rev(1, func(template map[string]any) { template["spec"].(map[string]any)["nodeName"] = "n1" })
	broken := with(pod("e", 1, unready, on("n2")))
	expectEach(t, []planCase{
		{"within maxUnavailable", nodeSet(4, maxUnavailable(1)), []string{leaveA}},
		{"side by side", nodeSet(4, maxUnavailable(3)), []string{leaveA, leaveB}},
		{"no budget", nodeSet(4, maxUnavailable(0)), nil},
		{"new Pods first", nodeSet(4, maxUnavailable(0), maxSurge(4)), []string{create1, create1}},
		{"new Pods are ready", nodeSet(2, maxUnavailable(0), maxSurge(2)), []string{leaveA, leaveB}},
		{"replacements start at once, whatever maxUnavailable allows", nodeSet(4, maxUnavailable(1), maxSurge(2)), []string{leaveA, create1, create1}},
		{"one leaves already", nodeSet(4, maxUnavailable(1), with(pod("0", 1, state(apps.StatePreparingDelete), label(apps.LabelSpecifiedDelete, "true"), finalizers(keyDelete)))),
			[]string{leaveA}},
		{"no budget while another is unavailable", nodeSet(5, maxUnavailable(1), broken), nil},
		{"no node goes", nodeSet(4, maxUnavailable(3), cordoned()), nil},
		{"not scheduled", loneOnNode(fresh, hooks(preDelete())), []string{"move a (Conditions) InPlaceUpdateReady=True KruisePodReady=True"}},
		{"nothing holds it", snap(1, hooks(preDelete()), cordoned("n1"), maxUnavailable(1), with(pod("a", 1))), []string{"delete a (NodeGoes)"}},
		// Who stays
		{"tolerates it", loneOnNode(tolerating(cordon)), nil},
		{"tolerates everything", loneOnNode(tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})), nil},
		{"tolerates another effect", loneOnNode(tolerating(otherEffect)), []string{leaveA}},
		{"no preDelete hook", loneOnNode(nothing, noHook), nil},
		{"claims that its replacement takes over", loneOnNode(nothing, templates("data")), nil},
		{"claims that go with it", loneOnNode(nothing, templates("data"), dropsClaims), []string{leaveA}},
		{"a template that names its node", loneOnNode(nothing, toRevision(onNode)), nil},
		{"terminating", loneOnNode(terminating), []string{create1}},
		// Beside other plans
		{"named for deletion too", loneOnNode(label(apps.LabelSpecifiedDelete, "true")), []string{"move a (SpecifiedDelete) to PreparingDelete"}},
		{"no update in place", loneOnNode(nothing, method(InPlaceIfPossible), toRevision(rev(2))), []string{leaveA}},
		{"in the middle of an update in place", loneOnNode(updating(2), method(InPlaceIfPossible), toRevision(rev(2))), []string{leaveA}},
		{"the partition keeps the revision", nodeSet(4, toRevision(rev(2)), partition(4), maxUnavailable(0), maxSurge(1)), []string{create1}},
		{"the partition does not", nodeSet(4, toRevision(rev(2)), partition(2), maxUnavailable(0), maxSurge(1)), []string{create2}},
		{"they go first in a scale-in", nodeSet(2, maxUnavailable(0)), []string{leaveA, leaveB}},
		{"a scale-in does not wait for them", nodeSet(4, maxUnavailable(0), broken), []string{"delete e (ScaleIn)"}},
		{"a scale-in that is taken back leaves them", loneOnNode(state(apps.StatePreparingDelete)), nil},
	})
	if because := decide(t, nodeSet(2)).Actions[0].Because; because != "node n1 is cordoned" {
		t.Errorf("because %q", because)
	}
	tainted := func(s *Snapshot) { s.GoingNodes["n1"] = []corev1.Taint{{Key: "karpenter.sh/disrupted"}} }
	if because := decide(t, nodeSet(2, tainted)).Actions[0].Because; because != "node n1 has the taint karpenter.sh/disrupted" {
		t.Errorf("because %q", because)
	}
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

// leftOn counts the Pods on a node.
func leftOn(s *Snapshot, node string) int {
	return len(slices.DeleteFunc(slices.Clone(s.Pods), func(p *corev1.Pod) bool { return p.Spec.NodeName != node }))
}

// TestNodeDrains: a node with many Pods drains as fast as one with a single Pod, and with a
// surge no Pod less serves meanwhile.
func TestNodeDrains(t *testing.T) {
	surge := []option{maxUnavailable(0), maxSurge(50), starts(64)}
	_, alone, _ := drainNode(t, 1, surge...)
	s, rounds, fewest := drainNode(t, 50, surge...)
	if leftOn(s, "n1") > 0 || len(s.Pods) != 50 || fewest < 50 || rounds != alone {
		t.Errorf("%d of %d Pods left on the node, at least %d served, %d rounds, want those of one Pod: %d", leftOn(s, "n1"), len(s.Pods), fewest, rounds, alone)
	}
	if s, _, fewest := drainNode(t, 10, maxUnavailable(3)); leftOn(s, "n1") > 0 || len(s.Pods) != 10 || fewest < 7 {
		t.Errorf("without a surge %d Pods are left on the node, at least %d served", leftOn(s, "n1"), fewest)
	}
}

// TestSingleNodeStays: without a place to go to, only as many Pods leave as the budget
// allows; when the node is uncordoned, those that are left stay.
func TestSingleNodeStays(t *testing.T) {
	for name, options := range map[string][]option{"alone": {maxUnavailable(3)}, "with a surge": {maxUnavailable(3), maxSurge(2)}} {
		s, _, fewest := drainNode(t, 10, append(options, cordoned("n1", "n2"))...)
		if leftOn(s, "n1") != 7 || fewest != 7 {
			t.Errorf("%s: %d Pods are left on the node, at least %d served, want 7", name, leftOn(s, "n1"), fewest)
		}
		cordoned()(s)
		runToEnd(t, s)
		if got := tally(s); leftOn(s, "n1") != 10 || got.Available != 10 {
			t.Errorf("%s, uncordoned: %d Pods on the node, %+v", name, leftOn(s, "n1"), got)
		}
	}
}
