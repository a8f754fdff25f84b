// SPDX-License-Identifier: Apache-2.0

// Package notice knows how nodes say that they will go: by taints and conditions, which node agents, autoscalers and
// kubelets set. It is the one place for that; docs/notices.md has the table for people, which a test compares with it.
package notice

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Source is one way to say that a node will go: a taint with any effect but PreferNoSchedule, or a condition that is as
// Status says.
type Source struct {
	// Name is the key of the taint, or the type of the condition.
	Name string
	// Status is that of the condition; empty for a taint. Says has the phrases of which one is in the condition's
	// reason or message; nil for any.
	Status corev1.ConditionStatus
	Says   []string
	// Within is the time that the node has at most from the notice on, whoever objects. 0 means that somebody evicts
	// Pods first, and waits for budgets.
	Within time.Duration
}

// Sources are all that Usher knows, those with the least time first. The cluster-autoscaler's
// DeletionCandidateOfClusterAutoscaler is none: with it, the node is only considered. Nor is
// node.kubernetes.io/not-ready: such a node may come back.
func Sources() []Source {
	return []Source{
		// The kubelet, when systemd asks it to shut down: shutdownGracePeriod, 30 s on GKE.
		{Name: string(corev1.NodeReady), Status: corev1.ConditionFalse, Says: []string{"node is shutting down"}, Within: 30 * time.Second},
		// KEP-5683, from Kubernetes 1.37 on.
		{Name: "GracefulNodeShutdownInProgress", Status: corev1.ConditionTrue, Within: 30 * time.Second},
		// Spot and preemptible nodes of GKE with its node termination handler.
		{Name: "cloud.google.com/impending-node-termination", Within: 30 * time.Second},
		// Scheduled events of AKS: those after which the machine is gone.
		{Name: "VMEventScheduled", Status: corev1.ConditionTrue, Says: []string{"Preempt", "Terminate"}, Within: 30 * time.Second},
		// The interruption of an EC2 spot instance, by aws-node-termination-handler with taintNode.
		{Name: "aws-node-termination-handler/spot-itn", Within: 2 * time.Minute},

		{Name: "ToBeDeletedByClusterAutoscaler"},
		{Name: "karpenter.sh/disrupted"},
		{Name: "karpenter.sh/disruption"}, // before Karpenter 1.0
		{Name: "aws-node-termination-handler/scheduled-maintenance"},
		{Name: "aws-node-termination-handler/asg-lifecycle-termination"},
		{Name: "aws-node-termination-handler/rebalance-recommendation"},
		{Name: "MaintenancePlanned", Status: corev1.ConditionTrue},
		{Name: "MaintenanceInProgress", Status: corev1.ConditionTrue},
		{Name: "DrainInProgress", Status: corev1.ConditionTrue},
		// The node is gone already: Kubernetes deletes its Pods, and nobody has to be asked.
		{Name: corev1.TaintNodeOutOfService},
	}
}

var sources = Sources()

// Notice is what one node says.
type Notice struct {
	Source
	// Taint is what Pods may tolerate: that of the node, or one with the name of a condition.
	Taint corev1.Taint
}

// Text says of a node that it has a notice of a name, such as "has the taint ToBeDeletedByClusterAutoscaler".
func Text(name string) string {
	at := slices.IndexFunc(sources, func(s Source) bool { return s.Name == name })
	switch {
	case at < 0 || sources[at].Status == "":
		return "has the taint " + name
	case name == string(corev1.NodeReady):
		return "is shutting down"
	}
	return "has the condition " + name
}

// Of returns the notices of a node, those with the least time first, and then as the node has them.
func Of(node *corev1.Node) (found []Notice) {
	for _, source := range sources {
		for _, taint := range node.Spec.Taints {
			if source.Status == "" && taint.Key == source.Name && taint.Effect != corev1.TaintEffectPreferNoSchedule {
				found = append(found, Notice{source, corev1.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect}})
			}
		}
		if slices.ContainsFunc(node.Status.Conditions, source.in) {
			found = append(found, Notice{source, corev1.Taint{Key: source.Name, Effect: corev1.TaintEffectNoSchedule}})
		}
	}
	return found
}

// in reports whether a condition is what the source says.
func (s Source) in(c corev1.NodeCondition) bool {
	if s.Status == "" || string(c.Type) != s.Name || c.Status != s.Status {
		return false
	}
	return s.Says == nil || slices.ContainsFunc(s.Says, func(phrase string) bool {
		return strings.Contains(c.Reason, phrase) || strings.Contains(c.Message, phrase)
	})
}

// Urgent returns the notice by which a node goes within a short time, whoever objects; false without one.
func Urgent(node *corev1.Node) (Notice, bool) {
	for _, n := range Of(node) {
		if n.Within > 0 {
			return n, true
		}
	}
	return Notice{}, false
}

// Conditions returns those of a node's conditions that are notices, without what changes all the time.
func Conditions(node *corev1.Node) (kept []corev1.NodeCondition) {
	for _, c := range node.Status.Conditions {
		at := slices.IndexFunc(sources, func(s Source) bool { return s.in(c) })
		if at < 0 {
			continue
		}
		short := corev1.NodeCondition{Type: c.Type, Status: c.Status}
		for _, phrase := range sources[at].Says {
			if strings.Contains(c.Reason, phrase) || strings.Contains(c.Message, phrase) {
				short.Reason = phrase
			}
		}
		kept = append(kept, short)
	}
	return kept
}
