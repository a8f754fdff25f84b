// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ClaimProtection is the finalizer that keeps a claim while a Pod uses it.
const ClaimProtection = "kubernetes.io/pvc-protection"

// Patch applies a patch to an object.
func (s *Server) Patch(
	actor string, kind Kind, at types.NamespacedName, subresource string, patchType types.PatchType, data []byte, dryRun bool,
) (client.Object, error) {
	return s.replace(actor, kind, at, subresource, dryRun, func(old client.Object) (client.Object, error) {
		if !takes(kind, patchType) {
			return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", kind.Resource(), at.Name,
				fmt.Sprintf("the body of the request was in an unknown format: %s", patchType), 0, true)
		}
		next, err := patched(old, patchType, data)
		if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
			err = apierrors.NewBadRequest(err.Error())
		}
		return next, err
	})
}

// patched returns an object after a patch. Both objects share the fields that the patch does not name.
func patched(object client.Object, patchType types.PatchType, data []byte) (client.Object, error) {
	old, part, next := reflect.ValueOf(object).Elem(), Empty(object), Empty(object)
	reflect.ValueOf(next).Elem().Set(old)
	if patchType == types.MergePatchType && merge(reflect.ValueOf(next).Elem(), data) {
		return next, nil
	}
	named := fieldsOf(patchType, data)
	if named == nil || !named.copyTo(reflect.ValueOf(part).Elem(), old) {
		return patchedWhole(object, patchType, data)
	}
	after, err := patchedWhole(part, patchType, data)
	if err != nil {
		return nil, err
	}
	reflect.ValueOf(next).Elem().Set(old)
	named.copyTo(reflect.ValueOf(next).Elem(), reflect.ValueOf(after).Elem())
	return next, nil
}

// patchedWhole returns an object after a patch, made with the libraries of the real server.
func patchedWhole(object client.Object, patchType types.PatchType, data []byte) (client.Object, error) {
	document, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	switch patchType {
	case types.JSONPatchType:
		document, err = jsonPatch(document, data)
	case types.StrategicMergePatchType, types.ApplyPatchType: // nothing is removed that an applier leaves out
		document, err = strategicpatch.StrategicMergePatch(document, data, object)
	default:
		document, err = jsonpatch.MergePatch(document, data)
	}
	if err != nil {
		return nil, err
	}
	next := Empty(object)
	return next, json.Unmarshal(document, next)
}

// takes reports whether the API server knows patches of a type for a kind.
func takes(kind Kind, patchType types.PatchType) bool {
	return patchType == types.JSONPatchType || patchType == types.MergePatchType ||
		(patchType == types.StrategicMergePatchType || patchType == types.ApplyPatchType) && kind != CloneSets
}

// jsonPatch applies a patch of RFC 6902. Like the real server it answers 422 when a test does not hold
// or a path does not exist.
func jsonPatch(document, data []byte) ([]byte, error) {
	operations, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return nil, err
	}
	after, err := operations.Apply(document)
	if err != nil {
		err = apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return after, err
}

// confine restores fields that the subresource cannot change, and returns an error for changes that are
// never allowed. Both versions share unchanged fields, so the comparison is fast.
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
	if pod, ok := next.(*corev1.Pod); ok {
		return confinePod(old.(*corev1.Pod), pod, subresource)
	}
	confineOther(old, next, subresource)
	return nil
}

// confineOther restores the status, or the rest, of an object with a status.
func confineOther(old, next client.Object, subresource string) {
	kept, changed := reflect.ValueOf(old).Elem(), reflect.ValueOf(next).Elem()
	status, spec := changed.FieldByName("Status"), changed.FieldByName("Spec")
	if !status.IsValid() || !spec.IsValid() {
		return
	}
	if subresource == "status" {
		written := reflect.New(status.Type()).Elem()
		written.Set(status)
		changed.Set(kept)
		status.Set(written)
		return
	}
	status.Set(kept.FieldByName("Status"))
	if was := kept.FieldByName("Spec"); same(spec.Interface(), was.Interface()) {
		spec.Set(was)
	} else {
		next.SetGeneration(old.GetGeneration() + 1)
	}
}

// confinePod restores fields that a subresource of a Pod cannot change. Labels and annotations can
// change with the status too.
func confinePod(old, next *corev1.Pod, subresource string) error {
	if subresource == "status" {
		next.Spec, next.OwnerReferences = old.Spec, old.OwnerReferences
		return nil
	}
	next.Status = old.Status
	if subresource == "resize" {
		return confineResize(old, next)
	}
	if same(old.Spec, next.Spec) {
		next.Spec = old.Spec
		return nil
	}
	allowed := next.Spec.DeepCopy()
	if len(allowed.Containers) == len(old.Spec.Containers) {
		for i := range allowed.Containers {
			allowed.Containers[i].Image = old.Spec.Containers[i].Image
		}
	}
	if old.Spec.NodeName == "" {
		allowed.NodeName = "" // a binding
	}
	if !same(old.Spec, *allowed) {
		return invalid(old, "spec", "", "Pod updates may not change fields other than the images of containers")
	}
	next.Generation = old.Generation + 1
	return nil
}

// confineResize lets the resize subresource change only resources.
func confineResize(old, next *corev1.Pod) error {
	containers := next.Spec.Containers
	next.Spec = *old.Spec.DeepCopy()
	next.Labels, next.Annotations, next.Finalizers = old.Labels, old.Annotations, old.Finalizers
	if len(containers) != len(old.Spec.Containers) {
		return invalid(old, "spec.containers", "", "containers may not be added or removed")
	}
	for i := range containers {
		have, want := old.Spec.Containers[i].Resources, containers[i].Resources
		if len(want.Requests) < len(have.Requests) || len(want.Limits) < len(have.Limits) {
			return invalid(old, "spec.containers", "", "resource requests and limits cannot be removed")
		}
		next.Spec.Containers[i].Resources = want
	}
	if !same(old.Spec, next.Spec) {
		next.Generation = old.Generation + 1
	}
	return nil
}

// admit validates a new Pod and sets its defaults.
func admit(pod *corev1.Pod) error {
	if len(pod.Spec.Containers) == 0 {
		return invalid(pod, "spec.containers", "", "required value")
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == "" || pod.Spec.Containers[i].Image == "" {
			return invalid(pod, "spec.containers", "", "a container needs a name and an image")
		}
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(corev1.DefaultTerminationGracePeriodSeconds))
	}
	return nil
}

func invalid(object client.Object, path, value, why string) error {
	kind := object.GetObjectKind().GroupVersionKind().GroupKind()
	return apierrors.NewInvalid(kind, object.GetName(), field.ErrorList{field.Invalid(field.NewPath(path), value, why)})
}

// The capacity of the nodes: a resize to more than most is never possible, and to more than spare not
// now. New Pods get all that they request, because that is no resize.
var most, spare = resource.MustParse("900m"), resource.MustParse("600m")

// refuses returns why the kubelet refuses a container its resources; "" if it does not.
func (n Node) refuses(want corev1.ResourceRequirements) string {
	cpu := want.Requests.Cpu()
	switch {
	case n.Roomy:
		return ""
	case cpu.Cmp(most) > 0:
		return corev1.PodReasonInfeasible
	case cpu.Cmp(spare) > 0:
		return corev1.PodReasonDeferred
	}
	return ""
}

// resize begins to change the resources of a running container.
func (r *Run) resize(i int, want *corev1.Container, node Node) []Task {
	c := &r.Containers[i]
	c.Wanted = *want.Resources.DeepCopy()
	if !c.Up || SameResources(c.Resources, c.Wanted) || node.refuses(c.Wanted) != "" {
		return nil
	}
	c.Allocated = c.Wanted.Requests
	if c.Resizing {
		return nil
	}
	c.Resizing = true
	return []Task{{Container: i}}
}

// Resize ends a resize. If the container has to restart for it, its start begins; done is false if the
// kubelet refuses the resize.
func (r *Run) Resize(i int, pod *corev1.Pod, node Node) (tasks []Task, done bool) {
	c, want := &r.Containers[i], &pod.Spec.Containers[i]
	c.Resizing = false
	if !c.Up || node.refuses(c.Wanted) != "" || pod.DeletionTimestamp != nil {
		return nil, false
	}
	if c.restartsFor(want) {
		c.Up = false
		return r.start(i, want.Image), true
	}
	c.Resources = c.Wanted
	return nil, true
}

// restartsFor reports whether the container has to restart to get its resources.
func (c *Container) restartsFor(want *corev1.Container) bool {
	return slices.ContainsFunc(want.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		has, wanted := c.Resources.Requests[p.ResourceName], c.Wanted.Requests[p.ResourceName]
		return p.RestartPolicy == corev1.RestartContainer && has.Cmp(wanted) != 0
	})
}

// has returns the resources that a container has, or will have once its image is
// available.
func (c *Container) has() corev1.ResourceRequirements {
	if c.Stuck {
		return c.Wanted
	}
	return c.Resources
}

// reported returns the resources that the kubelet reports for a container; for one that
// does not run, it reports those that it will have.
func (c *Container) reported() (*corev1.ResourceRequirements, corev1.ResourceList) {
	if c.Up {
		return c.Resources.DeepCopy(), c.Allocated.DeepCopy()
	}
	return c.Wanted.DeepCopy(), c.Wanted.Requests.DeepCopy()
}

// resizeConditions describe why a resize of the Pod waits, and whether one is under
// way.
func (r *Run) resizeConditions(node Node) (pending string, resizing bool) {
	for i := range r.Containers {
		c := &r.Containers[i]
		if !c.Up || SameResources(c.Resources, c.Wanted) {
			continue
		}
		if why := node.refuses(c.Wanted); why != "" {
			pending = why
		} else {
			resizing = true
		}
	}
	return pending, resizing
}

func setResizeConditions(pod *corev1.Pod, pending string, resizing bool, now time.Time) {
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
	})
	if pending != "" {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: pending, LastTransitionTime: seconds(now),
			Message: "Node didn't have enough capacity: cpu",
		})
	}
	if resizing {
		SetCondition(pod, corev1.PodResizeInProgress, true, now)
	}
}

// SameResources compares requests and limits.
func SameResources(a, b corev1.ResourceRequirements) bool {
	return equality.Semantic.DeepEqual(a.Requests, b.Requests) && equality.Semantic.DeepEqual(a.Limits, b.Limits)
}

// ResourcesText describes requests.
func ResourcesText(r corev1.ResourceRequirements) string {
	var parts []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := r.Requests[name]; ok {
			parts = append(parts, fmt.Sprintf("%s %s", name, q.String()))
		}
	}
	return strings.Join(parts, " and ")
}
