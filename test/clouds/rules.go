// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// Rule is how a controller chooses targets.
type Rule struct {
	// Has reports whether an endpoint of a slice is a target. nodeReady is the condition Ready of the Pod's node.
	Has func(e *discoveryv1.Endpoint, pod *corev1.Pod, nodeReady bool) bool
	// Gate begins the types of the controller's own readiness gates; empty if it has none.
	Gate string
}

// Rules are those of controllers by the value of LabelRule.
var Rules = map[string]Rule{
	"aws": {aws, "target-health.elbv2.k8s.aws/"},
	"gke": {gke, "cloud.google.com/load-balancer-neg-ready"},
	"ccm": {ccm, gateCCM},
}

// gateCCM begins the types of Alibaba CCM's readiness gates.
const gateCCM = "service.readiness.alibabacloud.com/"

// aws is the rule of AWS Load Balancer Controller 3.5 for the target type ip.
func aws(e *discoveryv1.Endpoint, pod *corev1.Pod, nodeReady bool) bool {
	if ready(e) {
		return true
	}
	return isTrue(pod, corev1.ContainersReady) && nodeReady && !ptr.Deref(e.Conditions.Terminating, false)
}

// gke is the rule of GKE's ingress-gce for network endpoint groups: health checks decide who gets requests.
func gke(_ *discoveryv1.Endpoint, pod *corev1.Pod, _ bool) bool { return pod.DeletionTimestamp == nil }

// ccm is the rule of Alibaba's cloud controller manager for backends of the type ENI.
func ccm(e *discoveryv1.Endpoint, pod *corev1.Pod, _ bool) bool {
	gated := slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool {
		return strings.HasPrefix(string(g.ConditionType), gateCCM)
	})
	return ready(e) || gated && isTrue(pod, corev1.ContainersReady)
}

func ready(e *discoveryv1.Endpoint) bool { return ptr.Deref(e.Conditions.Ready, true) }

func isTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}
