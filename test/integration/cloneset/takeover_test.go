// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/integration/openkruise"
)

// finalizers sets a Pod's finalizers.
func (s *story) finalizers(pod *corev1.Pod, list ...string) {
	s.Helper()
	patch := s.MergePatch(`metadata: {resourceVersion: %q, finalizers: [%s]}`, pod.ResourceVersion, strings.Join(list, ", "))
	if err := s.Patch(s.Context(), pod.DeepCopy(), patch); client.IgnoreNotFound(err) != nil {
		s.Logf("finalizers of %s, which is tried again: %v", pod.Name, err)
	}
}

// operate answers all gates as an operator would, and acts as the kubelet of Pods that
// no agent serves.
func (s *story) operate() {
	s.Helper()
	for _, pod := range s.pods() {
		switch state(&pod) {
		case apps.StatePreparingNormal:
			if !slices.Contains(pod.Finalizers, registeredKey) {
				s.finalizers(&pod, registeredKey)
			}
		case apps.StatePreparingUpdate:
			s.label(pod.Name, inPlaceKey, "false")
		case apps.StateUpdated:
			s.label(pod.Name, inPlaceKey, "true")
		case apps.StatePreparingDelete:
			s.finalizers(&pod)
			continue
		}
		if pod.Spec.NodeName == openkruise.FarAway {
			s.kubelet(pod)
		}
	}
}

// kubelet changes a Pod's status as its kubelet would.
func (s *story) kubelet(pod corev1.Pod) {
	s.Helper()
	before := pod.DeepCopy()
	status := &pod.Status.ContainerStatuses[0]
	if image := pod.Spec.Containers[0].Image; status.Image != image {
		status.Image, status.ImageID, status.ContainerID = image, "sha256:"+image, "containerd://"+image
		status.RestartCount++
		status.State.Running.StartedAt = metav1.Now()
	}
	ready := corev1.ConditionTrue
	for _, gate := range pod.Spec.ReadinessGates {
		if conditionOf(&pod, gate.ConditionType).Status != corev1.ConditionTrue {
			ready = corev1.ConditionFalse
		}
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status != ready {
			c.Status, c.LastTransitionTime = ready, metav1.Now()
		}
	}
	s.Must(client.IgnoreNotFound(s.Status().Patch(s.Context(), &pod, client.StrategicMergeFrom(before))))
}

// goldenRevisions are the names from OpenKruise; Usher would choose others.
var goldenRevisions = []string{"web-5c5f7d6f8d", "web-7f9d8c5b64"}

// What OpenKruise leaves, in every state, ends in the same result: no unnecessary
// write, no unnecessary restart, no lost hook.
func TestTakeover(t *testing.T) {
	const keepOld, marking = `spec: {updateStrategy: {partition: 1}}`, `spec: {lifecycle: {inPlaceUpdate: {markPodNotReady: true}}}`
	tests := []struct {
		state string
		// patch changes the set that OpenKruise leaves.
		patch string
		// still reports whether there is nothing to write until somebody acts.
		still bool
		// then is what the user does.
		then string
		// restarts is how often the Pod's container is restarted; -1 if the Pod is
		// deleted.
		restarts int32
	}{
		{state: "Normal", patch: keepOld, still: true, then: `spec: {updateStrategy: {partition: 0}}`, restarts: 1},
		{state: "no state", patch: keepOld, still: true, then: `spec: {updateStrategy: {partition: "0%"}}`, restarts: 1},
		{state: "short revision", patch: keepOld, still: true, then: `spec: {updateStrategy: {partition: 0}}`, restarts: 1},
		{state: "PreparingNormal", patch: keepOld, still: true, then: `spec: {updateStrategy: {partition: 0}}`, restarts: 1},
		{state: "PreparingUpdate", still: true, restarts: 1},
		{state: "marked PreparingUpdate", patch: marking, still: true, restarts: 1},
		{state: "grace period", restarts: 1},
		{state: "Updating", still: true, restarts: 1},
		{state: "Updating and done", restarts: 1},
		{state: "Updated", still: true, restarts: 1},
		{state: "PreparingDelete", patch: `spec: {replicas: 0}`, still: true, restarts: -1},
		{state: "PreparingDelete", patch: `spec: {replicas: 0, updateStrategy: {paused: true}}`, still: true, then: `spec: {replicas: 1, updateStrategy: {paused: false}}`, restarts: 1},
		{state: "specified PreparingDelete", still: true, restarts: -1},
		{state: "specified-delete", restarts: -1},
	}
	for _, test := range tests {
		t.Run(test.state, func(t *testing.T) {
			s := withoutController(t)
			s.Must(openkruise.Leave(t.Context(), s, s.Namespace, test.state, test.patch))
			before, pods := s.versions(), s.identities()
			s.patch(`spec: {revisionHistoryLimit: 9}`) // so that a pass has something to write
			s.startController()
			s.observed()
			if after := s.versions(); test.still && !maps.Equal(before, after) {
				t.Errorf("written for nothing: %v, then %v\n%s", before, after, s.Picture())
			}
			if test.then != "" {
				s.patch("%s", test.then)
			}
			s.ends(pods, test.restarts)
			if names := s.revisionNames(); !slices.Equal(names, goldenRevisions) {
				t.Errorf("revisions %v, want those that were there", names)
			}
		})
	}
}

// ends brings the set to its end, and checks what became of its only Pod.
func (s *story) ends(pods map[string]types.UID, restarts int32) {
	s.Helper()
	s.until("the set to be as the user wants it", func() bool {
		s.operate()
		set := s.set()
		status, want := &set.Status, *set.Spec.Replicas
		done := status.ObservedGeneration == set.Generation && status.UpdatedAvailableReplicas == want && status.Replicas == want
		return done && len(s.pods()) == int(want) && (restarts >= 0 || !maps.Equal(pods, s.identities()))
	})
	if restarts >= 0 {
		s.kept(pods, restarts)
	}
}

// kept checks that the only Pod is the same, protected, and up to date.
func (s *story) kept(pods map[string]types.UID, restarts int32) {
	s.Helper()
	s.samePods(pods)
	pod := s.pods()[0]
	if got := pod.Status.ContainerStatuses[0].RestartCount; got != restarts {
		s.Errorf("%d restarts, want %d", got, restarts)
	}
	if pod.Labels[inPlaceKey] != "true" || !slices.Contains(pod.Finalizers, registeredKey) {
		s.Errorf("a hook is lost: labels %v, finalizers %v", pod.Labels, pod.Finalizers)
	}
	if image := pod.Spec.Containers[0].Image; image != "example.test/web:v2" {
		s.Errorf("image %s", image)
	}
}
