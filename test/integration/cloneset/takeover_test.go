// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/podread"
	"github.com/usher-dev/usher/test/integration/openkruise"
)

// finalizers sets a Pod's finalizers.
func (s *story) finalizers(pod *corev1.Pod, list ...string) {
	patch := s.MergePatch(`metadata: {resourceVersion: %q, finalizers: [%s]}`, pod.ResourceVersion, strings.Join(list, ", "))
	if err := s.Patch(s.Context(), pod.DeepCopy(), patch); client.IgnoreNotFound(err) != nil {
		s.Logf("finalizers of %s, which is tried again: %v", pod.Name, err)
	}
}

// operate answers all gates as an operator would, and acts as the kubelet of Pods that
// no agent serves.
func (s *story) operate() {
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
		case apps.StateNormal, apps.StateUpdating: // no gate holds it
		}
		if pod.Spec.NodeName == openkruise.FarAway {
			s.kubelet(pod)
		}
	}
}

// kubelet changes a Pod's status as its kubelet would.
func (s *story) kubelet(pod corev1.Pod) {
	before := pod.DeepCopy()
	status := &pod.Status.ContainerStatuses[0]
	if image := pod.Spec.Containers[0].Image; status.Image != image {
		status.Image, status.ImageID, status.ContainerID = image, "sha256:"+image, "containerd://"+image
		status.RestartCount++
		status.State.Running.StartedAt = metav1.Now()
	}
	ready := corev1.ConditionTrue
	for _, gate := range pod.Spec.ReadinessGates {
		if !podread.IsTrue(&pod, gate.ConditionType) {
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

// takeOver has OpenKruise leave a set with one Pod in a state, which a patch of the set may follow, and
// starts the controller.
func (s *story) takeOver(rest string) {
	s.stop()
	state, patch, _ := strings.Cut(rest, "\n")
	s.Must(openkruise.Leave(s.Context(), s, s.Namespace, state, patch))
	s.note()
	s.patch(`spec: {revisionHistoryLimit: 9}`) // so that a pass has something to write
	s.startController()
	s.observed()
}

// ends brings the set to its end: its Pod is "kept with 1 restarts", or "goes".
func (s *story) ends(how string) {
	restarts, kept := strings.CutPrefix(how, "is kept with ")
	s.Await("the set to be as the user wants it", func() bool {
		s.operate()
		set := s.set()
		status, want := &set.Status, *set.Spec.Replicas
		done := status.ObservedGeneration == set.Generation && status.UpdatedAvailableReplicas == want && status.Replicas == want
		return done && len(s.pods()) == int(want) && (kept || !maps.Equal(s.noted.pods, s.identities()))
	})
	if kept {
		s.kept(restarts)
	}
	s.Same("revisions", fmt.Sprint(s.revisionNames()), fmt.Sprint(goldenRevisions))
}

// kept checks that the only Pod is the same, protected, and up to date.
func (s *story) kept(restarts string) {
	s.Same("Pods", s.identities(), s.noted.pods)
	pod := s.pods()[0]
	s.Same("the Pod", s.restarts()+" restarts", restarts)
	if pod.Labels[inPlaceKey] != "true" || !slices.Contains(pod.Finalizers, registeredKey) {
		s.Errorf("a hook is lost: labels %v, finalizers %v", pod.Labels, pod.Finalizers)
	}
	if len(pod.ManagedFields) == 0 {
		s.Errorf("the record of who wrote %s is gone", pod.Name)
	}
	checktest.Same(s, "image", "example.test/web:v2", pod.Spec.Containers[0].Image)
}

// handedBack checks what a controller that stops now leaves behind, and starts another one.
func (s *story) handedBack() {
	s.observed()
	s.stop()
	s.documented()
	s.startController()
}

// written lists the paths of an object that the controller owns, such as
// ".metadata.labels.app".
func (s *story) written(object client.Object) (paths []string) {
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

// documented checks what the controller has written so far against the paths of OpenKruise's
// documentation.
func (s *story) documented() {
	documented := strings.Split(string(checktest.Must(os.ReadFile("testdata/documented-paths.txt"))(s)), "\n")
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
			known := slices.ContainsFunc(documented, func(known string) bool {
				prefix, open := strings.CutSuffix(known, "*")
				return path == known || (open && strings.HasPrefix(path, prefix))
			})
			if !known {
				s.Errorf("%T %s carries %s, which OpenKruise does not document", object, object.GetName(), path)
			}
		}
	}
}

// wellFormed checks the values that OpenKruise parses.
func (s *story) wellFormed(pod *corev1.Pod) {
	known := []apps.LifecycleState{
		apps.StatePreparingNormal, apps.StateNormal, apps.StatePreparingUpdate, apps.StateUpdating, apps.StateUpdated, apps.StatePreparingDelete,
	}
	if !slices.Contains(known, state(pod)) {
		s.Errorf("state %q", state(pod))
	}
	if _, err := time.Parse(time.RFC3339, pod.Annotations[apps.AnnotationLifecycleTimestamp]); err != nil {
		s.Error(err)
	}
	checktest.Same(s, "revision label", "web-"+pod.Labels[apps.LabelTemplateHash], pod.Labels[apps.LabelRevision])
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
