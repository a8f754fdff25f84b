// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/inplace"
	"github.com/usher-dev/usher/internal/lifecycle"
	"github.com/usher-dev/usher/internal/plan"
	"github.com/usher-dev/usher/internal/revision"
)

// readinessGates are the gates that a set's Pods are made with. The controller
// makes the Pods, so it adds the gates itself: no webhook is needed.
func readinessGates(hooks lifecycle.Hooks) []corev1.PodConditionType {
	gates := []corev1.PodConditionType{apps.ConditionInPlaceUpdateReady}
	if hooks.InPlaceUpdate.MarkNotReady || hooks.PreDelete.MarkNotReady {
		gates = append(gates, apps.ConditionPodReady)
	}
	return gates
}

// podManifest makes a Pod from the raw template of a revision, so that fields
// which this program's libraries do not know reach the API server.
func podManifest(set *apps.CloneSet, r *revision.Revision, id string, now time.Time) *unstructured.Unstructured {
	template := runtime.DeepCopyJSON(r.Template)
	metadata, _ := template["metadata"].(map[string]any)
	spec, _ := template["spec"].(map[string]any)
	if spec == nil {
		spec = map[string]any{}
	}
	gates, _ := spec["readinessGates"].([]any)
	for _, gate := range readinessGates(lifecycle.FromSpec(set.Spec.Lifecycle)) {
		present := slices.ContainsFunc(gates, func(g any) bool {
			m, _ := g.(map[string]any)
			return m["conditionType"] == string(gate)
		})
		if !present {
			gates = append(gates, map[string]any{"conditionType": string(gate)})
		}
	}
	spec["readinessGates"] = gates

	pod := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": spec}}
	labels, annotations := stringsOf(metadata, "labels"), stringsOf(metadata, "annotations")
	maps.Copy(labels, revisionLabels(r))
	labels[apps.LabelInstanceID] = id
	labels[apps.LabelLifecycleState] = string(apps.StatePreparingNormal)
	annotations[apps.AnnotationLifecycleTimestamp] = now.UTC().Format(time.RFC3339)
	pod.SetNamespace(set.Namespace)
	pod.SetName(set.Name + "-" + id)
	pod.SetLabels(labels)
	pod.SetAnnotations(annotations)
	pod.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)})
	if finalizers, ok := metadata["finalizers"].([]any); ok {
		for _, f := range finalizers {
			pod.SetFinalizers(append(pod.GetFinalizers(), fmt.Sprint(f)))
		}
	}
	return pod
}

func stringsOf(metadata map[string]any, field string) map[string]string {
	out := map[string]string{}
	values, _ := metadata[field].(map[string]any)
	for key, value := range values {
		if text, ok := value.(string); ok {
			out[key] = text
		}
	}
	return out
}

func revisionLabels(r *revision.Revision) map[string]string {
	return map[string]string{apps.LabelRevision: r.Name, apps.LabelTemplateHash: revision.Short(r.Name)}
}

// statusPatch sets conditions of a Pod, if it still is that Pod in that version.
// An empty version leaves only the UID to be checked.
func statusPatch(pod *corev1.Pod, version string, conditions []plan.Condition, now time.Time) ([]byte, error) {
	list := make([]corev1.PodCondition, 0, len(conditions))
	for _, c := range conditions {
		list = append(list, corev1.PodCondition{
			Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message, LastTransitionTime: metav1.NewTime(now),
		})
	}
	return json.Marshal(map[string]any{
		"metadata": precondition(pod, version),
		"status":   map[string]any{"conditions": conditionsJSON(list)},
	})
}

// conditionsJSON spells the message out even if it is empty: a merge would
// otherwise keep the old one.
func conditionsJSON(conditions []corev1.PodCondition) []map[string]any {
	out := make([]map[string]any, 0, len(conditions))
	for _, c := range conditions {
		out = append(out, map[string]any{
			"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message,
			"lastTransitionTime": c.LastTransitionTime,
		})
	}
	return out
}

func precondition(pod *corev1.Pod, version string) map[string]any {
	metadata := map[string]any{"uid": pod.UID}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	return metadata
}

// podPatch is the strategic merge patch of an action, without its conditions;
// nil if it changes nothing else. It touches only fields of its own.
func podPatch(pod *corev1.Pod, a *plan.Action, now time.Time) ([]byte, error) {
	labels, annotations := map[string]any{}, map[string]any{}
	for key, value := range a.Labels {
		labels[key] = value
	}
	metadata := precondition(pod, pod.ResourceVersion)
	patch := map[string]any{"metadata": metadata}
	if a.To != "" {
		labels[apps.LabelLifecycleState] = a.To
		annotations[apps.AnnotationLifecycleTimestamp] = now.UTC().Format(time.RFC3339)
	}
	if a.Verb == plan.Update {
		addUpdate(pod, a, labels, annotations, patch, now)
	}
	if len(a.AddFinalizers) > 0 {
		metadata["finalizers"] = a.AddFinalizers
	}
	if len(a.RemoveFinalizers) > 0 {
		metadata["$deleteFromPrimitiveList/finalizers"] = a.RemoveFinalizers
	}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	if len(labels)+len(annotations)+len(a.AddFinalizers)+len(a.RemoveFinalizers)+len(patch) == 1 {
		return nil, nil
	}
	return json.Marshal(patch)
}

func addUpdate(pod *corev1.Pod, a *plan.Action, labels, annotations, patch map[string]any, now time.Time) {
	for key, value := range a.Change.Labels {
		labels[key] = value
	}
	for key, value := range a.Change.Annotations {
		annotations[key] = value
	}
	for key, value := range revisionLabels(a.Revision) {
		labels[key] = value
	}
	state := inplace.NewState(a.Change, a.Revision.Name, pod.Status.ContainerStatuses, now)
	annotations[apps.AnnotationInPlaceUpdateState] = state.String()
	if len(a.Change.Images) == 0 {
		return
	}
	containers := make([]map[string]any, 0, len(a.Change.Images))
	for _, name := range slices.Sorted(maps.Keys(a.Change.Images)) {
		containers = append(containers, map[string]any{"name": name, "image": a.Change.Images[name]})
	}
	patch["spec"] = map[string]any{"containers": containers}
}
