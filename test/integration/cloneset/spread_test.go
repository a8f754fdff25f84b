// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestScaleInKeepsZonesEven: the zones are node labels, which the controller reads for
// this set. Two of three nodes share a zone, so that an even spread over nodes is
// uneven over zones.
func TestScaleInKeepsZonesEven(t *testing.T) {
	s := begin(t)
	var nodes corev1.NodeList
	s.must(s.client.List(t.Context(), &nodes))
	zones := map[string]string{}
	for i, node := range nodes.Items {
		zones[node.Name] = []string{"a", "a", "b"}[i%3]
		s.must(s.client.Patch(t.Context(), &node, s.mergePatch("metadata: {labels: {%s: %s}}", corev1.LabelTopologyZone, zones[node.Name])))
	}
	s.create("plain", `spec: {template: {spec: {topologySpreadConstraints: [`+
		`{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]}}}`)
	for _, replicas := range []int32{6, 4, 2} {
		s.patch(`spec: {replicas: %d}`, replicas)
		s.settled(replicas)
		counts := map[string]int32{}
		for _, pod := range s.pods() {
			counts[zones[pod.Spec.NodeName]]++
		}
		if counts["a"] != replicas/2 || counts["b"] != replicas/2 {
			t.Errorf("%d replicas: Pods by zone are %v", replicas, counts)
		}
	}
}

// TestTakenOutPod: a Pod that its set no longer matches keeps running and is replaced;
// when it matches again, the set takes it back and has one Pod too many.
func TestTakenOutPod(t *testing.T) {
	s := running(t, "plain")
	taken := s.pods()[0]
	owned := func() int {
		return len(slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool { return metav1.GetControllerOf(&p) == nil }))
	}
	s.label(taken.Name, "app", "apart")
	s.until("the Pod to be replaced", func() bool {
		return len(s.pods()) == 4 && owned() == 3 && s.set().Status.AvailableReplicas == 3
	})
	pod := s.pod(taken.Name)
	s.read(pod)
	if pod.UID != taken.UID || len(pod.OwnerReferences) != 0 || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("Pod %s was not left as it is: owners %v", pod.Name, pod.OwnerReferences)
	}
	s.label(taken.Name, "app", "web")
	s.settled(3)
	if n := owned(); n != 3 {
		t.Errorf("%d Pods of the set, want 3", n)
	}
}
