// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// indexOwner and orphan reproduce the controller's index, which a real cache maintains
// by the same rule.
const (
	indexOwner = "usher.dev/owner"
	orphan     = "orphan"
)

// fill copies an object of the server into the caller's.
func fill(out, object client.Object) error {
	switch to := out.(type) {
	case *corev1.Pod:
		if from, ok := object.(*corev1.Pod); ok {
			from.DeepCopyInto(to)
			return nil
		}
	case *apps.CloneSet:
		if from, ok := object.(*apps.CloneSet); ok {
			from.DeepCopyInto(to)
			return nil
		}
	case *appsv1.ControllerRevision:
		if from, ok := object.(*appsv1.ControllerRevision); ok {
			from.DeepCopyInto(to)
			return nil
		}
	case *corev1.PersistentVolumeClaim:
		if from, ok := object.(*corev1.PersistentVolumeClaim); ok {
			from.DeepCopyInto(to)
			return nil
		}
	case *unstructured.Unstructured:
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		raw["apiVersion"], raw["kind"] = to.GetAPIVersion(), to.GetKind()
		to.Object = raw
		return nil
	}
	return fmt.Errorf("cannot read a %T into a %T", object, out)
}

// fillList copies the objects that the options select into the caller's list. The items
// share memory with the server, as in a cache when a caller asks for no copies.
func fillList(list client.ObjectList, objects []client.Object, options []client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	if o.LabelSelector == nil {
		o.LabelSelector = labels.Everything()
	}
	if o.FieldSelector == nil {
		o.FieldSelector = fields.Everything()
	}
	for _, object := range objects {
		index := fields.Set{indexOwner: ownerOf(object)}
		if object.GetNamespace() != o.Namespace || !o.LabelSelector.Matches(labels.Set(object.GetLabels())) || !o.FieldSelector.Matches(index) {
			continue
		}
		if err := appendTo(list, object); err != nil {
			return err
		}
	}
	return nil
}

func appendTo(list client.ObjectList, object client.Object) error {
	switch l := list.(type) {
	case *corev1.PodList:
		if pod, ok := object.(*corev1.Pod); ok {
			l.Items = append(l.Items, *pod)
			return nil
		}
	case *apps.CloneSetList:
		if set, ok := object.(*apps.CloneSet); ok {
			l.Items = append(l.Items, *set)
			return nil
		}
	case *appsv1.ControllerRevisionList:
		if revision, ok := object.(*appsv1.ControllerRevision); ok {
			l.Items = append(l.Items, *revision)
			return nil
		}
	case *corev1.PersistentVolumeClaimList:
		if claim, ok := object.(*corev1.PersistentVolumeClaim); ok {
			l.Items = append(l.Items, *claim)
			return nil
		}
	}
	return fmt.Errorf("cannot list a %T in a %T", object, list)
}

func ownerOf(object client.Object) string {
	if owner := metav1.GetControllerOf(object); owner != nil {
		return string(owner.UID)
	}
	return orphan
}

// withoutVersion removes the preconditions about the object from a patch.
func withoutVersion(patch []byte) ([]byte, error) {
	var operations []map[string]any
	if json.Unmarshal(patch, &operations) == nil {
		operations = slices.DeleteFunc(operations, func(o map[string]any) bool {
			return o["op"] == "test" || o["path"] == "/metadata/resourceVersion"
		})
		return json.Marshal(operations)
	}
	var body map[string]any
	if err := json.Unmarshal(patch, &body); err != nil {
		return nil, fmt.Errorf("decode patch: %w", err)
	}
	if metadata, ok := body["metadata"].(map[string]any); ok {
		delete(metadata, "resourceVersion")
	}
	return json.Marshal(body)
}
