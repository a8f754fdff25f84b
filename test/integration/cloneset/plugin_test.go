// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/scenariotest"
)

// These stories send what OpenKruise's kubectl plugin sends, according
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
	set := s.Ref("CloneSet/" + s.name)
	s.Read(set)
	return set
}

func (s *story) typed() (out typed) {
	s.Must(runtime.DefaultUnstructuredConverter.FromUnstructured(s.raw().Object, &out))
	return out
}

func (s *story) template() *corev1.PodTemplateSpec {
	out := s.typed()
	return &out.Spec.Template
}

// merged is the template with a strategic merge patch.
func (s *story) merged(patch string) *corev1.PodTemplateSpec {
	now := checktest.Must(json.Marshal(s.template()))(s)
	change := checktest.Must(yaml.YAMLToJSON([]byte(patch)))(s)
	then := checktest.Must(strategicpatch.StrategicMergePatch(now, change, corev1.PodTemplateSpec{}))(s)
	out := &corev1.PodTemplateSpec{}
	s.Must(json.Unmarshal(then, out))
	return out
}

// setContainers changes the containers as `set image`, `set env` and `set resources`
// do: what is sent holds the whole list.
func (s *story) setContainers(patch string) {
	containers := checktest.Must(json.Marshal(s.merged(patch).Spec.Containers))(s)
	s.patch("spec: {template: {spec: {containers: %s}}}", containers)
}

// setImage is `set image cloneset/web main=image`.
func (s *story) setImage(image string) {
	s.setContainers(fmt.Sprintf(`spec: {containers: [{name: main, image: "example.test/%s"}]}`, image))
}

// writeBack changes the template as a client with its own types does: it writes back
// the whole object, with the nulls and zeros of its types.
func (s *story) writeBack(patch string) {
	s.Must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		set := s.raw() // the update conflicts if the template is another one
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s.merged(patch))
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
	set, spec := s.set(), s.typed().Spec
	selector := checktest.Must(metav1.LabelSelectorAsSelector(&spec.Selector))(s)
	return slices.DeleteFunc(s.revisions(), func(r appsv1.ControllerRevision) bool {
		return !selector.Matches(labels.Set(r.Labels)) || !metav1.IsControlledBy(&r, set)
	})
}

// templateAt is what `rollout history --revision` shows: the revision's data as a
// strategic merge patch of the present template.
func (s *story) templateAt(r *appsv1.ControllerRevision) *corev1.PodTemplateSpec {
	now := checktest.Must(json.Marshal(s.typed()))(s)
	then := checktest.Must(strategicpatch.StrategicMergePatch(now, r.Data.Raw, typed{}))(s)
	var out typed
	s.Must(json.Unmarshal(then, &out))
	return &out.Spec.Template
}

// chronicle summarizes the history: "1 web:v1, 2 web:v2".
func (s *story) chronicle() string {
	return strings.Join(list.Map(s.history(), func(r appsv1.ControllerRevision) string {
		image := s.templateAt(&r).Spec.Containers[0].Image
		return fmt.Sprintf("%d %s", r.Revision, strings.TrimPrefix(image, "example.test/"))
	}), ", ")
}

// restarts lists the container restarts of each Pod, fewest first: "0+0 1+0" is two
// Pods; in the second, the first container restarted once.
func (s *story) restarts() string {
	out := list.Map(s.pods(), func(pod corev1.Pod) string {
		all := pod.Status.ContainerStatuses
		slices.SortFunc(all, func(a, b corev1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
		return strings.Join(list.Map(all, func(c corev1.ContainerStatus) string { return fmt.Sprint(c.RestartCount) }), "+")
	})
	slices.Sort(out)
	return strings.Join(out, " ")
}

// unchanged makes the controller run another pass, and checks that it writes nothing to a
// Pod or a revision.
func (s *story) unchanged() {
	before := s.versions()
	s.patch(`spec: {revisionHistoryLimit: %d}`, 10+s.set().Generation)
	s.observed()
	checktest.Same(s, "versions", s.versions(), before)
	if n := s.set().Status.CollisionCount; n != nil && *n != 0 {
		s.Errorf("collisionCount is %d", *n)
	}
}

// rollout is the output of `rollout status` for a set, and whether it is final.
func rollout(set *apps.CloneSet) (says string, over bool) {
	status, replicas := &set.Status, *set.Spec.Replicas
	want := status.ExpectedUpdatedReplicas
	progressing := status.Condition(apps.ConditionProgressing)
	switch {
	case status.ObservedGeneration < set.Generation:
		return "waiting for the spec to be observed", false
	case progressing != nil && progressing.Reason == "ProgressDeadlineExceeded":
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
	s.Await("the rollout to be over", func() (over bool) {
		says, over = rollout(s.set())
		return over
	})
	return says
}

// undo is `rollout undo --to-revision=number`; "" is the revision before the newest.
func (s *story) undo(number string) {
	history := s.history()
	if len(history) < 2 {
		s.Fatalf("no rollout history found: %v", s.chronicle())
	}
	i := len(history) - 2
	if number != "" {
		i = slices.IndexFunc(history, func(r appsv1.ControllerRevision) bool { return fmt.Sprint(r.Revision) == number })
	}
	if i < 0 {
		s.Fatalf("unable to find the revision %s: %v", number, s.chronicle())
	}
	s.patch("%s", history[i].Data.Raw)
}

// fewEvents checks that the set got no more than that many events, as in "13 events".
func (s *story) fewEvents(most string) {
	count, notes := 0, ""
	for _, e := range s.Events(s.set(), "") {
		times := max(1, int(e.DeprecatedCount))
		if e.Series != nil {
			times = max(times, int(e.Series.Count))
		}
		count += times
		notes += fmt.Sprintf("%d × %s: %s\n", times, e.Reason, e.Note)
	}
	if count > scenariotest.Number(strings.TrimSuffix(most, " events")) {
		s.Errorf("%d events, want %s at most:\n%s", count, most, notes)
	}
}

// causes tells why each revision was created, as `rollout history` does.
func (s *story) causes() string {
	var out []string
	for _, r := range s.history() {
		out = append(out, fmt.Sprint(r.Revision, " ", r.Annotations["kubernetes.io/change-cause"]))
		if text, there := r.Annotations[corev1.LastAppliedConfigAnnotation]; there {
			s.Errorf("revision %d carries what was last applied to the set: %s", r.Revision, text)
		}
	}
	return strings.Join(out, ", ")
}

// showsNewest checks that the plugin would see that the set is at its newest revision already.
func (s *story) showsNewest() {
	history := s.history()
	if newest := history[len(history)-1]; !equality.Semantic.DeepEqual(s.templateAt(&newest), s.template()) {
		s.Errorf("the newest revision is not the template: %s", newest.Data.Raw)
	}
}
