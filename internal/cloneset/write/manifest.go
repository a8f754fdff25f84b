// SPDX-License-Identifier: Apache-2.0

// Package write encodes what the planner decided: the manifests of new Pods and claims,
// and the patches of a Pod. It is pure; package cloneset sends them.
package write

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// readinessGates returns the readiness gates of a set's new Pods. The controller creates
// the Pods, so it adds the gates itself: no webhook is needed.
func readinessGates(hooks lifecycle.Hooks) []corev1.PodConditionType {
	gates := []corev1.PodConditionType{apps.ConditionInPlaceUpdateReady}
	if hooks.InPlaceUpdate.MarkNotReady || hooks.PreDelete.MarkNotReady {
		gates = append(gates, apps.ConditionPodReady)
	}
	return gates
}

// PodManifest builds a Pod from the raw template of a revision, so that fields which this
// program's libraries do not know reach the API server.
func PodManifest(set *apps.CloneSet, r *revision.Revision, id string, now time.Time) *unstructured.Unstructured {
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
	MountClaims(spec, set, id)

	labels, annotations := revision.Strings(template, "labels"), revision.Strings(template, "annotations")
	maps.Copy(labels, revisionLabels(r))
	labels[apps.LabelInstanceID] = id
	labels[apps.LabelLifecycleState] = string(apps.StatePreparingNormal)
	annotations[apps.AnnotationLifecycleTimestamp] = now.UTC().Format(time.RFC3339)
	pod := manifest(set, "Pod", plan.PodName(set.Name, id), spec, labels, annotations)
	if finalizers, ok := metadata["finalizers"].([]any); ok {
		for _, f := range finalizers {
			pod.SetFinalizers(append(pod.GetFinalizers(), fmt.Sprint(f)))
		}
	}
	return pod
}

// ClaimManifest builds a claim from its raw template, so that fields which this program's
// libraries do not know reach the API server.
func ClaimManifest(set *apps.CloneSet, template *apps.ClaimTemplate, id string) (*unstructured.Unstructured, error) {
	content, err := revision.Decode(template.Raw())
	if err != nil {
		return nil, err
	}
	labels := revision.Strings(content, "labels")
	maps.Copy(labels, set.Spec.Selector.AsMeta().MatchLabels)
	labels[apps.LabelInstanceID] = id
	name := plan.ClaimName(template.Metadata.Name, set.Name, id)
	return manifest(set, "PersistentVolumeClaim", name, content["spec"], labels, revision.Strings(content, "annotations")), nil
}

// manifest is that of an object of the set.
func manifest(set *apps.CloneSet, kind, name string, spec any, labels, annotations map[string]string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind}}
	if spec != nil {
		object.Object["spec"] = spec
	}
	object.SetNamespace(set.Namespace)
	object.SetName(name)
	object.SetLabels(labels)
	if len(annotations) > 0 {
		object.SetAnnotations(annotations)
	}
	object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(set, apps.KindCloneSet)})
	return object
}

// MountClaims adds the volumes of a Pod's claims. They replace volumes of the same name
// in the template, as in a StatefulSet.
func MountClaims(spec map[string]any, set *apps.CloneSet, id string) {
	volumes, _ := spec["volumes"].([]any)
	for i := range set.Spec.VolumeClaimTemplates {
		name := set.Spec.VolumeClaimTemplates[i].Metadata.Name
		volume := map[string]any{
			"name": name, "persistentVolumeClaim": map[string]any{"claimName": plan.ClaimName(name, set.Name, id)},
		}
		at := slices.IndexFunc(volumes, func(v any) bool {
			m, _ := v.(map[string]any)
			return m["name"] == name
		})
		if at < 0 {
			volumes = append(volumes, volume)
			continue
		}
		volumes[at] = volume
	}
	if len(volumes) > 0 {
		spec["volumes"] = volumes
	}
}

// revisionLabels are a revision's labels. Where the set's name leaves no room for the hash in
// a label's value, the hash alone is in both: nothing else of them is compared.
func revisionLabels(r *revision.Revision) map[string]string {
	long, short := r.Name, revision.Short(r.Name)
	if len(long) > validation.LabelValueMaxLength {
		long = short
	}
	return map[string]string{apps.LabelRevision: long, apps.LabelTemplateHash: short}
}
