// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

const (
	registeredKey = "example.com/registered"
	farAway       = "far-away" // a node that no agent serves: the story acts as its kubelet
)

// golden reads a file of what OpenKruise leaves, with this story's names.
func (s *story) golden(file string, uid types.UID) string {
	s.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "openkruise", file))
	if err != nil {
		s.Fatal(err)
	}
	return strings.NewReplacer("NAMESPACE", s.namespace, "UID", string(uid)).Replace(string(data))
}

// put creates an object together with its status.
func (s *story) put(object *unstructured.Unstructured) {
	s.Helper()
	status, _, _ := unstructured.NestedMap(object.Object, "status")
	if err := s.client.Create(s.Context(), object); err != nil {
		s.Fatal(err)
	}
	if status == nil {
		return
	}
	object.Object["status"] = status
	if err := s.client.Status().Update(s.Context(), object); err != nil {
		s.Fatal(err)
	}
}

// leave creates what OpenKruise leaves: the set, its revisions, and one Pod in a state
// of states.yaml.
func (s *story) leave(state string, edits ...any) {
	s.Helper()
	documents := strings.Split(s.golden("set.yaml", ""), "\n---\n")
	s.put(s.edited(documents[0], edits...))
	uid := s.set().UID
	for _, document := range strings.Split(s.golden("set.yaml", uid), "\n---\n")[1:] {
		s.put(s.object(document))
	}
	var states map[string]map[string]any
	if err := yaml.Unmarshal([]byte(s.golden("states.yaml", uid)), &states); err != nil {
		s.Fatal(err)
	}
	change, ok := states[state]
	if !ok {
		s.Fatalf("states.yaml has no state %q", state)
	}
	pod := s.object(s.golden("pod.yaml", uid))
	merge(pod.Object, change)
	s.put(pod)
}

// merge applies a JSON merge patch.
func merge(into, change map[string]any) {
	for key, value := range change {
		members, isMap := value.(map[string]any)
		inner, wasMap := into[key].(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && wasMap:
			merge(inner, members)
		default:
			into[key] = value
		}
	}
}

// versions are the resource versions of the story's Pods and revisions.
func (s *story) versions() map[string]string {
	s.Helper()
	out := map[string]string{}
	for _, pod := range s.pods() {
		out["Pod "+pod.Name] = pod.ResourceVersion
	}
	for _, r := range s.revisions() {
		out["revision "+r.Name] = fmt.Sprint(r.Revision, " ", r.ResourceVersion)
	}
	return out
}

// revisions are the story's ControllerRevisions, oldest first.
func (s *story) revisions() []appsv1.ControllerRevision {
	s.Helper()
	var list appsv1.ControllerRevisionList
	if err := s.client.List(s.Context(), &list, client.InNamespace(s.namespace)); err != nil {
		s.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	return list.Items
}

func (s *story) revisionNames() []string {
	s.Helper()
	names := []string{}
	for _, r := range s.revisions() {
		names = append(names, r.Name)
	}
	return names
}

// observed waits until the controller has run a pass over the present set.
func (s *story) observed() {
	s.Helper()
	s.until("the set's generation to be observed", func() bool {
		set := s.set()
		return set.Status.ObservedGeneration == set.Generation
	})
}

// finalizers sets a Pod's finalizers.
func (s *story) finalizers(pod *corev1.Pod, list ...string) {
	s.Helper()
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": pod.ResourceVersion, "finalizers": list}})
	if err != nil {
		s.Fatal(err)
	}
	err = s.client.Patch(s.Context(), pod.DeepCopy(), client.RawPatch(types.MergePatchType, data))
	if client.IgnoreNotFound(err) != nil {
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
		if pod.Spec.NodeName == farAway {
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
		if conditionOf(&pod, gate.ConditionType) != corev1.ConditionTrue {
			ready = corev1.ConditionFalse
		}
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status != ready {
			c.Status, c.LastTransitionTime = ready, metav1.Now()
		}
	}
	err := s.client.Status().Patch(s.Context(), &pod, client.StrategicMergeFrom(before))
	if client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
}

func conditionOf(pod *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

// goldenRevisions are the names from OpenKruise; Usher would choose others.
var goldenRevisions = []string{"web-5c5f7d6f8d", "web-7f9d8c5b64"}

// What OpenKruise leaves, in every state, ends in the same result: no unnecessary
// write, no unnecessary restart, no lost hook.
func TestTakeover(t *testing.T) {
	keepOld := []any{"spec.updateStrategy.partition", 1}
	marking := []any{"spec.lifecycle.inPlaceUpdate.markPodNotReady", true}
	tests := []struct {
		state string
		edits []any
		// still reports whether there is nothing to write until somebody acts.
		still bool
		// then is what the user does.
		then string
		// restarts is how often the Pod's container is restarted; -1 if the Pod is
		// deleted.
		restarts int32
	}{
		{state: "Normal", edits: keepOld, still: true, then: `spec: {updateStrategy: {partition: 0}}`, restarts: 1},
		{state: "no state", edits: keepOld, still: true, then: `spec: {updateStrategy: {partition: "0%"}}`, restarts: 1},
		{state: "short revision", edits: keepOld, still: true, then: `spec: {updateStrategy: {partition: 0}}`, restarts: 1},
		{state: "PreparingNormal", edits: keepOld, still: true, then: `spec: {updateStrategy: {partition: 0}}`, restarts: 1},
		{state: "PreparingUpdate", still: true, restarts: 1},
		{state: "marked PreparingUpdate", edits: marking, still: true, restarts: 1},
		{state: "grace period", restarts: 1},
		{state: "Updating", still: true, restarts: 1},
		{state: "Updating and done", restarts: 1},
		{state: "Updated", still: true, restarts: 1},
		{state: "PreparingDelete", edits: []any{"spec.replicas", 0}, still: true, restarts: -1},
		{state: "PreparingDelete", edits: []any{"spec.replicas", 0, "spec.updateStrategy.paused", true}, still: true, then: `spec: {replicas: 1, updateStrategy: {paused: false}}`, restarts: 1},
		{state: "specified PreparingDelete", still: true, restarts: -1},
		{state: "specified-delete", restarts: -1},
	}
	for _, test := range tests {
		t.Run(test.state, func(t *testing.T) {
			t.Parallel()
			s := without(t)
			s.leave(test.state, test.edits...)
			before, pods := s.versions(), s.identities()
			s.patch(`spec: {revisionHistoryLimit: 9}`) // so that a pass has something to write
			s.startController()
			s.observed()
			if after := s.versions(); test.still && !maps.Equal(before, after) {
				t.Errorf("written for nothing: %v, then %v\n%s", before, after, s.picture())
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
	if now := s.identities(); !maps.Equal(pods, now) {
		s.Fatalf("Pods %v became %v", pods, now)
	}
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

// A set that is deleted without its Pods and recreated takes them back with their
// revisions: nothing restarts.
func TestASetMadeAnewTakesItsPodsBack(t *testing.T) {
	t.Parallel()
	s := without(t)
	stop := s.startController()
	s.create(plain)
	s.settled(3)
	stop()
	pods, revisions := s.identities(), s.revisionNames()
	s.orphan()
	if err := s.client.Delete(t.Context(), s.set()); err != nil {
		t.Fatal(err)
	}
	s.create(plain)
	s.startController()
	s.settled(3)
	if now := s.identities(); !maps.Equal(pods, now) {
		t.Errorf("Pods %v became %v", pods, now)
	}
	if names := s.revisionNames(); !slices.Equal(names, revisions) {
		t.Errorf("revisions %v became %v", revisions, names)
	}
	s.image("example.test/web:v2")
	s.settled(3)
	if now := s.identities(); !maps.Equal(pods, now) {
		t.Errorf("an update in place made %v of %v", now, pods)
	}
}

// orphan does what the garbage collector does when a set is deleted with the policy
// Orphan: nothing belongs to the set any more.
func (s *story) orphan() {
	s.Helper()
	var objects []client.Object
	for _, pod := range s.pods() {
		objects = append(objects, &pod)
	}
	for _, r := range s.revisions() {
		objects = append(objects, &r)
	}
	for _, object := range objects {
		if err := s.client.Patch(s.Context(), object, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"ownerReferences":null}}`))); err != nil {
			s.Fatal(err)
		}
	}
}
