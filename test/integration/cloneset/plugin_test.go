// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/util/retry"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// The stories in plugin*_test.go send what OpenKruise's kubectl plugin sends, according
// to the documentation of its commands and of the corresponding kubectl commands.

// typed is what clients with their own types read of a set.
type typed struct {
	Spec struct {
		Selector metav1.LabelSelector   `json:"selector"`
		Template corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

// raw is the set as stored in the API server.
func (s *story) raw() *unstructured.Unstructured {
	s.Helper()
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(apps.KindCloneSet)
	set.SetNamespace(s.Namespace)
	set.SetName(s.name)
	s.Read(set)
	return set
}

func (s *story) typed() (out typed) {
	s.Helper()
	s.Must(runtime.DefaultUnstructuredConverter.FromUnstructured(s.raw().Object, &out))
	return out
}

func (s *story) template() *corev1.PodTemplateSpec {
	s.Helper()
	out := s.typed()
	return &out.Spec.Template
}

// setContainers changes the containers as `set image`, `set env` and `set resources`
// do: the patch holds the whole list.
func (s *story) setContainers(change func(*corev1.PodTemplateSpec)) {
	s.Helper()
	template := s.template()
	change(template)
	containers, err := json.Marshal(template.Spec.Containers)
	s.Must(err)
	s.patch("spec: {template: {spec: {containers: %s}}}", containers)
}

// setImage is `set image cloneset/web main=image`.
func (s *story) setImage(image string) {
	s.Helper()
	s.setContainers(func(t *corev1.PodTemplateSpec) { t.Spec.Containers[0].Image = "example.test/" + image })
}

// writeBack changes the template as a client with its own types does: it writes back
// the whole object, with the nulls and zeros of its types.
func (s *story) writeBack(change func(*corev1.PodTemplateSpec)) {
	s.Helper()
	s.Must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		set, template := s.raw(), s.template() // the update conflicts if they differ
		change(template)
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template)
		if err != nil {
			return err
		}
		fields["metadata"].(map[string]any)["creationTimestamp"] = nil // as types before Kubernetes 1.34 do
		set.Object["spec"].(map[string]any)["template"] = fields
		return s.Update(s.Context(), set)
	}))
}

// history lists the revisions that `rollout history` finds, oldest first: those that
// match the set's selector and belong to the set.
func (s *story) history() []appsv1.ControllerRevision {
	s.Helper()
	set, spec := s.set(), s.typed().Spec
	selector, err := metav1.LabelSelectorAsSelector(&spec.Selector)
	s.Must(err)
	return slices.DeleteFunc(s.revisions(), func(r appsv1.ControllerRevision) bool {
		return !selector.Matches(labels.Set(r.Labels)) || !metav1.IsControlledBy(&r, set)
	})
}

// templateAt is what `rollout history --revision` shows: the revision's data as a
// strategic merge patch of the present template.
func (s *story) templateAt(r *appsv1.ControllerRevision) *corev1.PodTemplateSpec {
	s.Helper()
	now, err := json.Marshal(s.typed())
	s.Must(err)
	then, err := strategicpatch.StrategicMergePatch(now, r.Data.Raw, typed{})
	s.Must(err)
	var out typed
	s.Must(json.Unmarshal(then, &out))
	return &out.Spec.Template
}

// chronicle summarizes the history: "1 web:v1, 2 web:v2".
func (s *story) chronicle() string {
	s.Helper()
	var out []string
	for _, r := range s.history() {
		image := s.templateAt(&r).Spec.Containers[0].Image
		out = append(out, fmt.Sprintf("%d %s", r.Revision, strings.TrimPrefix(image, "example.test/")))
	}
	return strings.Join(out, ", ")
}

// restarts lists the container restarts of each Pod, fewest first: "0+0 1+0" is two
// Pods; in the second, the first container restarted once.
func (s *story) restarts() string {
	s.Helper()
	var out []string
	for _, pod := range s.pods() {
		var counts []string
		slices.SortFunc(pod.Status.ContainerStatuses, func(a, b corev1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
		for _, c := range pod.Status.ContainerStatuses {
			counts = append(counts, fmt.Sprint(c.RestartCount))
		}
		out = append(out, strings.Join(counts, "+"))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// unchanged makes the controller run another pass, and checks that it writes nothing to a
// Pod or a revision.
func (s *story) unchanged() {
	s.Helper()
	before := s.versions()
	s.patch(`spec: {revisionHistoryLimit: %d}`, 10+s.set().Generation)
	s.observed()
	if after := s.versions(); !maps.Equal(before, after) {
		s.Errorf("written for nothing: %v, then %v", before, after)
	}
	if n := s.set().Status.CollisionCount; n != nil && *n != 0 {
		s.Errorf("collisionCount is %d", *n)
	}
}

// ranOn checks which Pods are the same, and how many of them have not been written
// since.
func (s *story) ranOn(pods map[string]types.UID, versions map[string]string, untouched int, recreated bool) {
	s.Helper()
	same := 0
	for _, pod := range s.pods() {
		if (pods[pod.Name] != pod.UID) != recreated {
			s.Errorf("Pod %s is new: %v, want %v", pod.Name, pods[pod.Name] != pod.UID, recreated)
		}
		if versions[pod.Name] == pod.ResourceVersion {
			same++
		}
	}
	if same != untouched {
		s.Errorf("%d Pods were not written, want %d\n%s", same, untouched, s.Picture())
	}
}

// rollout is the output of `rollout status` for a set, and whether it is final.
func rollout(set *apps.CloneSet) (says string, over bool) {
	status, replicas := &set.Status, *set.Spec.Replicas
	want := status.ExpectedUpdatedReplicas
	timedOut := slices.ContainsFunc(status.Conditions, func(c apps.CloneSetCondition) bool {
		return c.Type == apps.ConditionProgressing && c.Reason == "ProgressDeadlineExceeded"
	})
	switch {
	case status.ObservedGeneration < set.Generation:
		return "waiting for the spec to be observed", false
	case timedOut:
		return "exceeded its progress deadline", true
	case status.UpdatedReplicas < want:
		return fmt.Sprintf("%d of %d new Pods have been updated", status.UpdatedReplicas, want), false
	case want == replicas && status.Replicas > status.UpdatedReplicas:
		return "old Pods are to end", false
	case status.UpdatedAvailableReplicas < want || status.AvailableReplicas < replicas:
		return "not all Pods are available", false
	case want < replicas:
		return fmt.Sprintf("partitioned roll out complete: %d new Pods", want), true
	}
	return "successfully rolled out", true
}

// rolloutStatus is `rollout status`: it follows the set until the output is final.
func (s *story) rolloutStatus() (says string) {
	s.Helper()
	s.until("the rollout to be over", func() (over bool) {
		says, over = rollout(s.set())
		return over
	})
	return says
}
