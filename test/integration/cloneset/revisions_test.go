// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// The oldest unused revisions are deleted; those that Pods use stay, whatever the
// limit.
func TestRevisionHistoryLimit(t *testing.T) {
	s := running(t, "plain", `spec: {replicas: 2, revisionHistoryLimit: 1, updateStrategy: {partition: 1}}`)
	first := s.set().Status.UpdateRevision
	for _, image := range []string{"web:v2", "web:v3", "web:v4"} {
		s.image(image)
		s.untilStatus("one Pod at "+image, func(status *apps.CloneSetStatus) bool {
			return status.UpdatedAvailableReplicas == 1 && status.AvailableReplicas == 2
		})
	}
	last := s.set().Status.UpdateRevision
	s.until("one revision that nothing uses beside the first and the last", func() bool {
		names := s.revisionNames()
		return len(names) == 3 && names[0] == first && names[2] == last
	})
	s.patch(`spec: {revisionHistoryLimit: 0}`)
	s.until("those in use alone", func() bool { return slices.Equal(s.revisionNames(), []string{first, last}) })
	s.patch(`spec: {updateStrategy: {partition: 0}}`)
	s.until("the last alone", func() bool { return slices.Equal(s.revisionNames(), []string{last}) })
	s.settled(2)
}

// counts are the counters of a status, in the order of the fields.
type counts struct{ replicas, ready, available, updated, updatedReady, updatedAvailable, expected int32 }

func (s *story) counted(phase string, want counts) {
	s.Helper()
	s.untilStatus(phase, func(c *apps.CloneSetStatus) bool {
		return want == counts{
			c.Replicas, c.ReadyReplicas, c.AvailableReplicas, c.UpdatedReplicas, c.UpdatedReadyReplicas, c.UpdatedAvailableReplicas, c.ExpectedUpdatedReplicas,
		}
	})
}

// The status in each phase of a rollout with a hook and a partition.
func TestStatusCounters(t *testing.T) {
	s := begin(t)
	s.create("hooked", `spec: {replicas: 3, updateStrategy: {partition: 2}}`)
	s.counted("all created", counts{3, 3, 3, 3, 3, 3, 1})
	first := s.set().Status.CurrentRevision
	s.image("web:v2")
	pod := s.one(apps.StatePreparingUpdate)
	s.counted("at its gate", counts{3, 3, 2, 0, 0, 0, 1})
	s.label(pod.Name, inPlaceKey, "false")
	s.one(apps.StateUpdated)
	s.counted("updated, and not in service yet", counts{3, 3, 2, 1, 1, 0, 1})
	s.label(pod.Name, inPlaceKey, "true")
	s.counted("back in service", counts{3, 3, 3, 1, 1, 1, 1})
	if status := s.set().Status; status.CurrentRevision != first || status.UpdateRevision == first {
		t.Errorf("current %s, update %s in mid-rollout", status.CurrentRevision, status.UpdateRevision)
	}
	s.patch(`spec: {replicas: 2}`)
	leaving := s.one(apps.StatePreparingDelete)
	s.counted("the updated one at the gate before its deletion, since the partition keeps two old ones", counts{3, 3, 2, 1, 1, 0, 0})
	s.label(leaving.Name, deleteKey, "false")
	s.counted("gone", counts{2, 2, 2, 0, 0, 0, 0})
}

// Pods carry no field managers, which would double the cost of each write, except Pods
// to which somebody applies server-side: what that manager stops applying is removed,
// after an update too.
func TestFieldManagersOfThoseWhoApply(t *testing.T) {
	s := running(t, "plain")
	for _, pod := range s.pods() {
		if len(pod.ManagedFields) > 0 {
			t.Errorf("Pod %s has managed fields of %s", pod.Name, pod.ManagedFields[0].Manager)
		}
	}
	const theirs = "example.com/theirs"
	name := s.pods()[0].Name
	apply := func(labels map[string]any) {
		t.Helper()
		pod := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"namespace": s.Namespace, "name": name, "labels": labels},
		}}
		s.Must(s.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(pod), client.FieldOwner(theirs)))
	}
	apply(map[string]any{theirs: "1"})
	s.image("web:v2")
	s.settled(3)
	for _, pod := range s.pods() {
		applies := slices.ContainsFunc(pod.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
			return e.Operation == metav1.ManagedFieldsOperationApply && e.Manager == theirs
		})
		if applies != (pod.Name == name) || (len(pod.ManagedFields) > 0) != applies {
			t.Errorf("Pod %s: %d managers, somebody applies: %v", pod.Name, len(pod.ManagedFields), applies)
		}
	}
	apply(nil)
	s.until("the label to go that is no longer applied", func() bool {
		return !slices.ContainsFunc(s.pods(), func(p corev1.Pod) bool { return p.Labels[theirs] != "" })
	})
}
