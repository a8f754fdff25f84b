// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

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
	if len(pod.ManagedFields) == 0 {
		s.Errorf("the record of who wrote %s is gone", pod.Name)
	}
	if image := pod.Spec.Containers[0].Image; image != "example.test/web:v2" {
		s.Errorf("image %s", image)
	}
}

// handedBack checks what a controller that stops now leaves behind, and starts another one.
func (s *story) handedBack() {
	s.Helper()
	s.observed()
	s.stop()
	s.documented()
	s.startController()
}

// written lists the paths of an object that the controller owns, such as
// ".metadata.labels.app".
func (s *story) written(object client.Object) (paths []string) {
	s.Helper()
	for _, entry := range object.GetManagedFields() {
		if entry.Manager != manager {
			continue
		}
		var fields fieldpath.Set
		s.Must(fields.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())))
		fields.Leaves().Iterate(func(path fieldpath.Path) { paths = append(paths, path.String()) })
	}
	if len(paths) == 0 {
		s.Errorf("%s: nothing is managed by %q", object.GetName(), manager)
	}
	return paths
}

// documentedPaths are the paths that a CloneSet controller may write on a Pod, on a
// revision, and on the set; * stands for the rest of a path. Further conditions of a set
// are for people, and OpenKruise keeps them.
var documentedPaths = []string{
	".metadata.labels.apps.kruise.io/cloneset-instance-id", ".metadata.labels.apps.kruise.io/specified-delete",
	".metadata.labels.controller-revision-hash", ".metadata.labels.pod-template-hash", ".metadata.labels.lifecycle.apps.kruise.io/state",
	".metadata.annotations.lifecycle.apps.kruise.io/timestamp",
	".metadata.annotations.apps.kruise.io/inplace-update-state", ".metadata.annotations.apps.kruise.io/inplace-update-grace",
	`.status.conditions[type="InPlaceUpdateReady"].*`, `.status.conditions[type="KruisePodReady"].*`,
	".metadata.ownerReferences[*", ".spec.*",
	".metadata.labels.controller.kubernetes.io/hash", ".data", ".revision",
	".status.availableReplicas", ".status.collisionCount", ".status.currentRevision", ".status.expectedUpdatedReplicas",
	".status.labelSelector", ".status.observedGeneration", ".status.readyReplicas", ".status.replicas", ".status.updateRevision",
	".status.updatedAvailableReplicas", ".status.updatedReadyReplicas", ".status.updatedReplicas",
	`.status.conditions[type="FailedScale"].*`, `.status.conditions[type="FailedUpdate"].*`, `.status.conditions[type="Progressing"].*`,
	`.status.conditions[type="Blocked"].*`,
	// Usher's own, which docs/migrate.md takes off on the way back.
	`.metadata.finalizers[="` + apps.FinalizerPreDelete + `"]`,
	// From the template of the set.
	".metadata.labels.app", ".metadata.annotations.note", ".metadata.labels." + inPlaceKey, `.metadata.finalizers[="` + registeredKey + `"]`,
}

// documented checks what the controller has written so far against OpenKruise's
// documentation.
func (s *story) documented() {
	s.Helper()
	objects := []client.Object{s.set()}
	for _, pod := range s.pods() {
		objects = append(objects, &pod)
		s.wellFormed(&pod)
	}
	for _, r := range s.revisions() {
		objects = append(objects, &r)
	}
	for _, object := range objects {
		for _, path := range s.written(object) {
			known := slices.ContainsFunc(documentedPaths, func(documented string) bool {
				prefix, open := strings.CutSuffix(documented, "*")
				return path == documented || (open && strings.HasPrefix(path, prefix))
			})
			if !known {
				s.Errorf("%T %s carries %s, which OpenKruise does not document", object, object.GetName(), path)
			}
		}
	}
}

// wellFormed checks the values that OpenKruise parses.
func (s *story) wellFormed(pod *corev1.Pod) {
	s.Helper()
	known := []apps.LifecycleState{
		apps.StatePreparingNormal, apps.StateNormal, apps.StatePreparingUpdate, apps.StateUpdating, apps.StateUpdated, apps.StatePreparingDelete,
	}
	if !slices.Contains(known, state(pod)) {
		s.Errorf("state %q", state(pod))
	}
	if _, err := time.Parse(time.RFC3339, pod.Annotations[apps.AnnotationLifecycleTimestamp]); err != nil {
		s.Error(err)
	}
	if long, short := pod.Labels[apps.LabelRevision], pod.Labels[apps.LabelTemplateHash]; long != "web-"+short {
		s.Errorf("revision labels %q and %q", long, short)
	}
	record := pod.Annotations[apps.AnnotationInPlaceUpdateState]
	if record == "" {
		return
	}
	var state struct {
		Revision              string
		UpdateTimestamp       time.Time
		LastContainerStatuses map[string]struct{ ImageID string }
	}
	if err := json.Unmarshal([]byte(record), &state); err != nil || state.Revision == "" || state.UpdateTimestamp.IsZero() {
		s.Errorf("in-place record %s: %v", record, err)
	}
	for name, last := range state.LastContainerStatuses {
		if name != "main" || last.ImageID == "" {
			s.Errorf("in-place record %s", record)
		}
	}
}
