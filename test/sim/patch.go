// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// patch applies a patch to a copy of an object.
func (s *Server) patch(
	actor string, kind Kind, key types.NamespacedName, subresource string, patchType types.PatchType, data []byte,
) (client.Object, error) {
	return s.update(actor, kind, key, subresource, func(object client.Object) error {
		return applyPatch(kind, object, patchType, data)
	})
}

func applyPatch(kind Kind, object client.Object, patchType types.PatchType, data []byte) error {
	before, err := json.Marshal(object)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	var after []byte
	switch {
	case patchType == types.MergePatchType:
		after, err = mergePatch(before, data)
	case patchType == types.JSONPatchType:
		after, err = jsonPatch(before, data)
	case patchType == types.StrategicMergePatchType && kind != Sets:
		after, err = strategicpatch.StrategicMergePatch(before, data, object)
	default:
		return apierrors.NewGenericServerResponse(415, "patch", kind.resource(), object.GetName(),
			fmt.Sprintf("the body of the request was in an unknown format: %s", patchType), 0, true)
	}
	if apierrors.IsInvalid(err) {
		return err
	}
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	empty(object)
	if err := json.Unmarshal(after, object); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// empty clears an object, because decoding merges into existing fields.
func empty(object client.Object) {
	switch o := object.(type) {
	case *corev1.Pod:
		*o = corev1.Pod{}
	case *apps.CloneSet:
		*o = apps.CloneSet{}
	case *corev1.PersistentVolumeClaim:
		*o = corev1.PersistentVolumeClaim{}
	}
}

// jsonPatch is RFC 6902. Like the real server it answers 422 when a test does
// not hold or a path does not exist.
func jsonPatch(document, data []byte) ([]byte, error) {
	operations, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return nil, err
	}
	after, err := operations.Apply(document)
	if err != nil {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return after, nil
}

// mergePatch is RFC 7386.
func mergePatch(document, patch []byte) ([]byte, error) {
	var target, change any
	if err := errors.Join(json.Unmarshal(document, &target), json.Unmarshal(patch, &change)); err != nil {
		return nil, err
	}
	return json.Marshal(merge(target, change))
}

func merge(target, change any) any {
	members, ok := change.(map[string]any)
	if !ok {
		return change
	}
	out, ok := target.(map[string]any)
	if !ok {
		out = map[string]any{}
	}
	for key, value := range members {
		if value == nil {
			delete(out, key)
			continue
		}
		out[key] = merge(out[key], value)
	}
	return out
}

// confine restores what the subresource cannot change, and refuses what nobody can
// change.
func confine(old, next client.Object, subresource string) error {
	next.SetCreationTimestamp(old.GetCreationTimestamp())
	next.SetDeletionTimestamp(old.GetDeletionTimestamp())
	next.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	next.SetGeneration(old.GetGeneration())
	next.SetResourceVersion(old.GetResourceVersion())
	next.SetUID(old.GetUID())
	if old.GetDeletionTimestamp() != nil {
		for _, f := range next.GetFinalizers() {
			if !slices.Contains(old.GetFinalizers(), f) {
				return invalid(old, "metadata.finalizers", f, "no new finalizers can be added if the object is being deleted")
			}
		}
	}
	if subresource != "" || len(next.GetManagedFields()) == 0 {
		next.SetManagedFields(old.GetManagedFields())
	} else if reflect.DeepEqual(next.GetManagedFields(), []metav1.ManagedFieldsEntry{{}}) {
		next.SetManagedFields(nil)
	}
	switch o := old.(type) {
	case *corev1.Pod:
		return confinePod(o, next.(*corev1.Pod), subresource)
	case *apps.CloneSet:
		confineSet(o, next.(*apps.CloneSet), subresource)
	}
	return nil
}

func confinePod(old, next *corev1.Pod, subresource string) error {
	if subresource == "status" {
		next.Spec = *old.Spec.DeepCopy()
		next.OwnerReferences = old.DeepCopy().OwnerReferences
		return nil
	}
	next.Status = *old.Status.DeepCopy()
	if subresource == "resize" {
		return confineResize(old, next)
	}
	if equality.Semantic.DeepEqual(old.Spec, next.Spec) {
		return nil
	}
	same := next.Spec.DeepCopy()
	if len(same.Containers) == len(old.Spec.Containers) {
		for i := range same.Containers {
			same.Containers[i].Image = old.Spec.Containers[i].Image
		}
	}
	if same.NodeName != old.Spec.NodeName && old.Spec.NodeName == "" {
		same.NodeName = "" // a binding
	}
	if !equality.Semantic.DeepEqual(old.Spec, *same) {
		return invalid(old, "spec", "", "Pod updates may not change fields other than the images of containers")
	}
	next.Generation = old.Generation + 1
	return nil
}

func confineSet(old, next *apps.CloneSet, subresource string) {
	if subresource == "status" {
		status := next.Status
		*next = *old.DeepCopy()
		next.Status = status
		return
	}
	next.Status = *old.Status.DeepCopy()
	if !reflect.DeepEqual(old.Spec, next.Spec) {
		next.Generation = old.Generation + 1
	}
}

// same reports whether two versions of an object look the same to a reader. A
// CloneSet's template has fields that only reflect can compare.
func same(a, b client.Object) bool {
	setA, okA := a.(*apps.CloneSet)
	setB, okB := b.(*apps.CloneSet)
	if okA && okB {
		return reflect.DeepEqual(setA.Spec, setB.Spec) && equality.Semantic.DeepEqual(setA.ObjectMeta, setB.ObjectMeta) &&
			equality.Semantic.DeepEqual(setA.Status, setB.Status)
	}
	return equality.Semantic.DeepEqual(a, b)
}

func validPod(pod *corev1.Pod) error {
	if len(pod.Spec.Containers) == 0 {
		return invalid(pod, "spec.containers", "", "required value")
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == "" || pod.Spec.Containers[i].Image == "" {
			return invalid(pod, "spec.containers", "", "a container needs a name and an image")
		}
	}
	return nil
}

func invalid(object client.Object, path, value, why string) error {
	kind := object.GetObjectKind().GroupVersionKind().GroupKind()
	return apierrors.NewInvalid(kind, object.GetName(), field.ErrorList{field.Invalid(field.NewPath(path), value, why)})
}
