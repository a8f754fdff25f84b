// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// zone assigns a node to a zone.
func (s *story) zone(node, zone string) {
	s.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, corev1.LabelTopologyZone, zone))
	if err := s.client.Patch(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch); err != nil {
		s.Fatal(err)
	}
}

// TestScaleInKeepsZonesEven: the zones are node labels, which the controller reads for
// this set. Two of three nodes share a zone, so that an even spread over nodes is
// uneven over zones.
func TestScaleInKeepsZonesEven(t *testing.T) {
	s := begin(t)
	var nodes corev1.NodeList
	if err := s.client.List(s.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	zones := map[string]string{}
	for i := range nodes.Items {
		name := nodes.Items[i].Name
		zones[name] = []string{"a", "a", "b"}[i%3]
		s.zone(name, zones[name])
	}
	s.create(plain, "spec.replicas", 6, "spec.template.spec.topologySpreadConstraints", []any{map[string]any{
		"maxSkew": int64(1), "topologyKey": corev1.LabelTopologyZone, "whenUnsatisfiable": "DoNotSchedule",
		"labelSelector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
	}})
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
	s := begin(t)
	s.create(plain)
	s.settled(3)
	taken := s.pods()[0]
	owned := func() int {
		return len(slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool { return metav1.GetControllerOf(&p) == nil }))
	}
	s.label(taken.Name, "app", "apart")
	s.until("the Pod to be replaced", func() bool {
		return len(s.pods()) == 4 && owned() == 3 && s.set().Status.AvailableReplicas == 3
	})
	for _, pod := range s.pods() {
		if pod.Name != taken.Name {
			continue
		}
		if pod.UID != taken.UID || len(pod.OwnerReferences) != 0 || pod.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("Pod %s was not left as it is: owners %v", pod.Name, pod.OwnerReferences)
		}
	}
	s.label(taken.Name, "app", "web")
	s.settled(3)
	if n := owned(); n != 3 {
		t.Errorf("%d Pods of the set, want 3", n)
	}
}
