// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usher-dev/usher/internal/checktest"
)

// TestRules: which controllers have a Pod as a target.
func TestRules(t *testing.T) {
	gated := func(prefix string) []corev1.PodReadinessGate {
		return []corev1.PodReadinessGate{{ConditionType: corev1.PodConditionType(prefix + "web")}}
	}
	running := []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}
	endpoint := func(ready, terminating bool) discoveryv1.EndpointConditions {
		return discoveryv1.EndpointConditions{Ready: &ready, Terminating: &terminating}
	}
	deleted := metav1.ObjectMeta{DeletionTimestamp: new(metav1.Now())}
	for name, test := range map[string]struct {
		conditions discoveryv1.EndpointConditions
		pod        corev1.Pod
		nodeReady  bool
		want       string
	}{
		"ready":                         {endpoint(true, false), corev1.Pod{Status: corev1.PodStatus{Conditions: running}}, true, "aws ccm gke"},
		"a slice without conditions":    {discoveryv1.EndpointConditions{}, corev1.Pod{}, true, "aws ccm gke"},
		"a closed gate of Usher":        {endpoint(false, false), corev1.Pod{Status: corev1.PodStatus{Conditions: running}}, true, "aws gke"},
		"the same, and the gate of CCM": {endpoint(false, false), corev1.Pod{Spec: corev1.PodSpec{ReadinessGates: gated(gateCCM)}, Status: corev1.PodStatus{Conditions: running}}, true, "aws ccm gke"},
		"on a node that is not ready":   {endpoint(false, false), corev1.Pod{Status: corev1.PodStatus{Conditions: running}}, false, "gke"},
		"containers that start":         {endpoint(false, false), corev1.Pod{}, true, "gke"},
		"deleted":                       {endpoint(false, true), corev1.Pod{ObjectMeta: deleted, Status: corev1.PodStatus{Conditions: running}}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var have []string
			for _, rule := range []string{"aws", "ccm", "gke"} {
				if Rules[rule].Has(&discoveryv1.Endpoint{Conditions: test.conditions}, &test.pod, test.nodeReady) {
					have = append(have, rule)
				}
			}
			checktest.Same(t, "who has it as a target", test.want, strings.Join(have, " "))
		})
	}
}
