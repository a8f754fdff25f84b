// SPDX-License-Identifier: Apache-2.0

package notice

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestTableForPeople: docs/notices.md has the sources that there are, in their order, and says which make Pods leave
// at once.
func TestTableForPeople(t *testing.T) {
	text := string(checktest.Must(os.ReadFile("../../docs/notices.md"))(t))
	var have, want []string
	for line := range strings.SplitSeq(text, "\n") {
		cells := strings.Split(line, " | ")
		if len(cells) != 4 || !strings.HasPrefix(line, "| `") {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(cells[0], "| `"), "`")
		have = append(have, name+" "+strings.TrimSuffix(cells[3], " |"))
	}
	for _, source := range Sources() {
		how := "with their eviction"
		switch {
		case source.Within > 0:
			how = "at once"
		case source.Name == corev1.TaintNodeOutOfService:
			how = "Kubernetes deletes them, and their entries go at once"
		}
		want = append(want, source.Name+" "+how)
	}
	checktest.Same(t, "the table", want, have)
}

// TestOf: what nodes say, and what is no notice.
func TestOf(t *testing.T) {
	taint := func(key string, effect corev1.TaintEffect) *corev1.Node {
		return &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: key, Effect: effect}}}}
	}
	condition := func(kind, status, reason, message string) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeConditionType(kind), Status: corev1.ConditionStatus(status), Reason: reason, Message: message}}}}
	}
	for name, test := range map[string]struct {
		node   *corev1.Node
		says   string
		urgent bool
	}{
		"a spot notice":      {taint("aws-node-termination-handler/spot-itn", "NoSchedule"), "has the taint aws-node-termination-handler/spot-itn", true},
		"one that evicts":    {taint("cloud.google.com/impending-node-termination", "NoExecute"), "has the taint cloud.google.com/impending-node-termination", true},
		"a preference":       {taint("aws-node-termination-handler/spot-itn", "PreferNoSchedule"), "", false},
		"an autoscaler":      {taint("ToBeDeletedByClusterAutoscaler", "NoSchedule"), "has the taint ToBeDeletedByClusterAutoscaler", false},
		"only considered":    {taint("DeletionCandidateOfClusterAutoscaler", "NoSchedule"), "", false},
		"not ready":          {taint("node.kubernetes.io/not-ready", "NoExecute"), "", false},
		"a kubelet's end":    {condition("Ready", "False", "KubeletNotReady", "node is shutting down"), "is shutting down", true},
		"a kubelet's fault":  {condition("Ready", "False", "KubeletNotReady", "container runtime is down"), "", false},
		"a silent kubelet":   {condition("Ready", "Unknown", "NodeStatusUnknown", "node is shutting down"), "", false},
		"a graceful end":     {condition("GracefulNodeShutdownInProgress", "True", "", ""), "has the condition GracefulNodeShutdownInProgress", true},
		"none in progress":   {condition("GracefulNodeShutdownInProgress", "False", "", ""), "", false},
		"a plan":             {condition("MaintenancePlanned", "True", "", ""), "has the condition MaintenancePlanned", false},
		"a preemption":       {condition("VMEventScheduled", "True", "PreemptScheduled", ""), "has the condition VMEventScheduled", true},
		"a moment's freeze":  {condition("VMEventScheduled", "True", "FreezeScheduled", ""), "", false},
		"a taint by a type":  {taint("DrainInProgress", "NoSchedule"), "", false},
		"a condition by key": {condition("aws-node-termination-handler/spot-itn", "True", "", ""), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			says := func(node *corev1.Node) (text string) {
				for _, n := range Of(node) {
					text += Text(n.Name)
				}
				return text
			}
			_, urgent := Urgent(test.node)
			checktest.Same(t, "what it says", test.says, says(test.node))
			checktest.Same(t, "whether all its Pods leave at once", test.urgent, urgent)
			short := test.node.DeepCopy()
			short.Status.Conditions = Conditions(test.node)
			_, still := Urgent(short)
			checktest.Same(t, "what it says, as caches keep it", test.says, says(short))
			checktest.Same(t, "whether all leave, as caches keep it", test.urgent, still)
		})
	}
}

// TestLeastTimeFirst: of several notices of a node the one with the least time counts.
func TestLeastTimeFirst(t *testing.T) {
	node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: "karpenter.sh/disrupted", Effect: "NoSchedule"}, {Key: "aws-node-termination-handler/spot-itn", Effect: "NoSchedule"},
		{Key: "cloud.google.com/impending-node-termination", Effect: "NoSchedule"},
	}}}
	first, _ := Urgent(node)
	checktest.Same(t, "the notice", "cloud.google.com/impending-node-termination", first.Name)
}
