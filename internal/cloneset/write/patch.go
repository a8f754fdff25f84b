// SPDX-License-Identifier: Apache-2.0

package write

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/launch"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
)

// Operations are an RFC 6902 patch. Patches of a Pod itself use it because its tests state
// exactly what a decision depends on: a kubelet that writes the Pod's status at the same moment
// is no conflict, a hook that takes hold is one.
type Operations []Operation

// Operation is one of them.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func (p *Operations) test(path string, value any) { *p = append(*p, Operation{"test", path, value}) }
func (p *Operations) add(path string, value any)  { *p = append(*p, Operation{"add", path, value}) }
func (p *Operations) replace(path string, value any) {
	*p = append(*p, Operation{"replace", path, value})
}

func (p *Operations) remove(path string) { *p = append(*p, Operation{Op: "remove", Path: path}) }

// escape is RFC 6901's.
var escape = strings.NewReplacer("~", "~0", "/", "~1")

// member returns the RFC 6901 path of a member of a string map in the metadata.
func member(field, key string) string { return "/metadata/" + field + "/" + escape.Replace(key) }

// basis begins a patch with what every decision about a Pod depends on: it is this Pod
// and still belongs to the set, its labels and finalizers are unchanged, nobody has
// deleted it, and no other update of it has begun.
func basis(pod *corev1.Pod) Operations {
	var p Operations
	p.test("/metadata/uid", pod.UID)
	p.test("/metadata/ownerReferences", orNull(pod.OwnerReferences))
	p.test("/metadata/labels", orNull(pod.Labels))
	p.test("/metadata/finalizers", orNull(pod.Finalizers))
	p.test("/metadata/deletionTimestamp", nil)
	if pod.Annotations != nil {
		var record any
		if text, ok := pod.Annotations[apps.AnnotationInPlaceUpdateState]; ok {
			record = text
		}
		p.test(member("annotations", apps.AnnotationInPlaceUpdateState), record)
	}
	return p
}

// orNull returns null for an empty map or list, which the API server leaves out.
func orNull(value any) any {
	if reflect.ValueOf(value).Len() == 0 {
		return nil
	}
	return value
}

// Subresources returns the subresources of a Pod that an action writes, in this order: the status, with
// the conditions; the Pod itself, as ""; and resize, with cpu and memory. So a drained Pod is out of
// its endpoints before its containers change.
//
// A Move with keys of users' choice writes them, and the state, to the Pod itself, because policies on
// Pods do not see writes to its status. Its conditions follow: if they came first and the Pod's write
// were refused, they would be those of a state that the Pod is not in. They follow from the state, so
// the next pass writes them if they are missing.
func Subresources(a *plan.Action) []string {
	if len(a.ChosenKeys()) > 0 {
		return []string{"", "status"}
	}
	return []string{"status", "", "resize"}
}

// Patch returns the patch with which an action changes a subresource of a Pod; no data if it changes
// nothing there. It touches only the controller's own fields, and drops the field managers' record of
// the Pod unless keepRecord is set.
func Patch(subresource string, pod *corev1.Pod, a *plan.Action, keepRecord bool, now time.Time) (kind types.PatchType, data []byte) {
	switch {
	case subresource == "status" && len(a.Conditions) > 0:
		return types.StrategicMergePatchType, status(pod, a, now)
	case subresource == "" && !withStatus(a):
		data = whole(pod, a, keepRecord, now)
	case subresource == "resize" && (a.Verb == plan.Update || a.Verb == plan.Continue):
		data = resize(pod, a)
	}
	return types.JSONPatchType, data
}

// withStatus reports whether an action's metadata is written together with its conditions.
func withStatus(a *plan.Action) bool {
	return a.Verb == plan.Move && len(a.Conditions) > 0 && len(a.ChosenKeys()) == 0
}

// status sets an action's conditions and, in the same write, the metadata that most Moves change: the
// subresource status takes both, so that nobody sees a state without its conditions. It merges, which
// costs the API server less than a JSON patch. The observed version is its precondition, and covers every
// test, unless the Pod only gets conditions that it lacks and that leave it in service: the scheduler and
// the kubelet write to a new Pod all the time, and another process may have added them.
func status(pod *corev1.Pod, a *plan.Action, now time.Time) []byte {
	// complete encodes all members: a merge does not change members that are missing.
	type complete struct {
		corev1.PodCondition
		Reason  string `json:"reason"`
		Message string `json:"message"`
	}
	conditions := list.Map(a.Conditions, func(c plan.Condition) complete {
		c.LastTransitionTime = metav1.NewTime(now)
		return complete{c, c.Reason, c.Message}
	})
	metadata := map[string]any{"uid": pod.UID}
	if withStatus(a) {
		labels, annotations := state(a, now)
		letStart(annotations, pod, a)
		mergeInto(metadata, "labels", labels)
		mergeInto(metadata, "annotations", annotations)
		mergeInto(metadata, "finalizers", a.AddFinalizers)
		mergeInto(metadata, "$deleteFromPrimitiveList/finalizers", a.RemoveFinalizers)
	}
	lacks := func(c plan.Condition) bool { return IndexOf(pod, c.Type) < 0 }
	leaves := func(c plan.Condition) bool { return c.Status == corev1.ConditionFalse }
	if len(metadata) > 1 || !slices.ContainsFunc(a.Conditions, lacks) || slices.ContainsFunc(a.Conditions, leaves) {
		metadata["resourceVersion"] = pod.ResourceVersion
	}
	return encode.JSON(map[string]any{"metadata": metadata, "status": map[string]any{"conditions": conditions}})
}

// mergeInto sets a map or a list that is not empty.
func mergeInto(metadata map[string]any, field string, value any) {
	if reflect.ValueOf(value).Len() > 0 {
		metadata[field] = value
	}
}

// IndexOf returns the index of a condition of the Pod; below 0 if the Pod lacks it.
func IndexOf(pod *corev1.Pod, kind corev1.PodConditionType) int {
	return slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
}

// testCondition tests that a condition is at its index with its status.
func (p *Operations) testCondition(i int, pod *corev1.Pod) {
	p.test(fmt.Sprintf("/status/conditions/%d/type", i), pod.Status.Conditions[i].Type)
	p.test(fmt.Sprintf("/status/conditions/%d/status", i), pod.Status.Conditions[i].Status)
}

// whole returns the patch of an action without its conditions; nil if it changes nothing else.
func whole(pod *corev1.Pod, a *plan.Action, keepRecord bool, now time.Time) []byte {
	p := basis(pod)
	tests := len(p)
	switch a.Verb {
	case plan.Update:
		p.update(pod, a, now)
		tests = -1
	case plan.Continue:
		p.continueUpdate(pod, a, now)
	default:
		p.move(pod, a, now)
	}
	if len(p) == tests {
		return nil
	}
	if !keepRecord {
		p.dropRecord(pod)
	}
	return encode.JSON(p)
}

// move changes the state, and the labels, annotations and finalizers of hooks.
func (p *Operations) move(pod *corev1.Pod, a *plan.Action, now time.Time) {
	if a.LeavesService() {
		p.testReady(pod)
	}
	labels, annotations := state(a, now)
	if letStart(annotations, pod, a) {
		p.testContainersReady("containerStatuses", pod.Status.ContainerStatuses)
	}
	p.metadata(pod, a, labels, annotations)
}

// letStart adds the annotation that lets containers of a Pod start, if those before them are ready in the
// Pod as it is, and reports that.
func letStart(annotations map[string]*string, pod *corev1.Pod, a *plan.Action) bool {
	next := launch.Of(pod)
	if next == nil || next.Key != a.Launch || len(next.First) > 0 {
		return false
	}
	annotations[a.Launch] = new(launch.Open)
	return true
}

// state returns the changes of an action's state and labels; a nil value removes the key.
func state(a *plan.Action, now time.Time) (labels, annotations map[string]*string) {
	labels, annotations = map[string]*string{}, map[string]*string{}
	maps.Copy(labels, a.Labels)
	if a.To != "" {
		state, at := string(a.To), now.UTC().Format(time.RFC3339)
		labels[apps.LabelLifecycleState], annotations[apps.AnnotationLifecycleTimestamp] = &state, &at
	}
	return labels, annotations
}

func (p *Operations) metadata(pod *corev1.Pod, a *plan.Action, labels, annotations map[string]*string) {
	p.merge("labels", pod.Labels, labels)
	p.merge("annotations", pod.Annotations, annotations)
	p.finalizers(pod, a)
}

// testReady makes the patch depend on the Pod's readiness as observed: a Pod that seemed
// unavailable cost no budget, and may serve by now.
func (p *Operations) testReady(pod *corev1.Pod) {
	if i := IndexOf(pod, corev1.PodReady); i >= 0 {
		p.testCondition(i, pod)
		return
	}
	p.add("/metadata/resourceVersion", pod.ResourceVersion)
}

// merge sets and removes members of a string map in the metadata.
func (p *Operations) merge(field string, have map[string]string, change map[string]*string) {
	if have == nil && len(change) > 0 {
		p.test("/metadata/"+field, nil)
		p.add("/metadata/"+field, map[string]string{})
	}
	for _, key := range slices.Sorted(maps.Keys(change)) {
		old, there := have[key]
		switch value := change[key]; {
		case value == nil && there:
			p.remove(member(field, key))
		case value != nil && (!there || old != *value):
			p.add(member(field, key), *value)
		}
	}
}

// finalizers rewrites the list; basis has tested the old one. controllerutil changes an
// object in memory, which says nothing of what a patch may depend on.
func (p *Operations) finalizers(pod *corev1.Pod, a *plan.Action) {
	next := slices.DeleteFunc(slices.Clone(pod.Finalizers), func(f string) bool { return slices.Contains(a.RemoveFinalizers, f) })
	for _, f := range a.AddFinalizers {
		if !slices.Contains(next, f) {
			next = append(next, f)
		}
	}
	if slices.Equal(next, pod.Finalizers) {
		return
	}
	if len(next) == 0 {
		p.remove("/metadata/finalizers")
		return
	}
	p.add("/metadata/finalizers", next)
}

// update changes containers and metadata to another revision. If a container restarts,
// the patch depends on the Pod being out of service.
func (p *Operations) update(pod *corev1.Pod, a *plan.Action, now time.Time) {
	labels, annotations := updated(a, now)
	p.step(pod, a, inplace.Begin(pod, a.Change, a.Revision.Name, now), annotations)
	p.metadata(pod, a, labels, annotations)
}

// step writes the record of an update and the images that are due with it.
func (p *Operations) step(pod *corev1.Pod, a *plan.Action, step inplace.Step, annotations map[string]*string) {
	state := step.State.String()
	annotations[apps.AnnotationInPlaceUpdateState] = &state
	if len(step.Images)+len(step.State.Resources) > 0 {
		p.testDrained(pod, a)
	}
	p.testSpec(pod)
	inContainers(p, pod, "replace", "image", step.Images)
}

// testSpec makes the patch depend on the Pod's spec as observed: an update leaves out
// what the spec already has, and that must not be missing in the end.
func (p *Operations) testSpec(pod *corev1.Pod) {
	if pod.Generation > 0 { // before Kubernetes 1.33, Pods have no generation
		p.test("/metadata/generation", pod.Generation)
	}
}

// testDrained makes the patch depend on the Pod being out of its endpoints since the
// observed time: another leader may have put it back and out again, and then the grace
// period starts over. A Pod that had no kubelet when that was decided must still have
// none: the write of its conditions may have returned a Pod that has one by now.
func (p *Operations) testDrained(pod *corev1.Pod, a *plan.Action) {
	if a.Pod.Spec.NodeName == "" {
		p.test("/spec/nodeName", nil)
		return
	}
	if i := IndexOf(pod, apps.ConditionInPlaceUpdateReady); i >= 0 {
		p.test(fmt.Sprintf("/status/conditions/%d/type", i), apps.ConditionInPlaceUpdateReady)
		p.test(fmt.Sprintf("/status/conditions/%d/status", i), corev1.ConditionFalse)
		p.test(fmt.Sprintf("/status/conditions/%d/lastTransitionTime", i), pod.Status.Conditions[i].LastTransitionTime)
	}
}

// inContainers sets a field of the containers that have a value for it, by name.
func inContainers[T any](p *Operations, pod *corev1.Pod, op, field string, values map[string]T) {
	set := func(list string, containers []corev1.Container) {
		for i := range containers {
			if value, ok := values[containers[i].Name]; ok {
				path := fmt.Sprintf("/spec/%s/%d/", list, i)
				p.test(path+"name", containers[i].Name)
				*p = append(*p, Operation{op, path + field, value})
			}
		}
	}
	set("containers", pod.Spec.Containers)
	set("initContainers", pod.Spec.InitContainers)
}

// Creator is the field manager that creates Pods.
const Creator = "usher"

// KeepsRecord reports whether a Pod's field managers' record is to stay: somebody uses server-side
// apply on the Pod, and needs the record to remove fields that are no longer applied; or somebody else
// has created the Pod, and may rely on it.
func KeepsRecord(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Operation == metav1.ManagedFieldsOperationApply
	}) || !slices.ContainsFunc(pod.ManagedFields, created)
}

// created reports whether an entry is that of the creation: nobody can change restartPolicy
// later.
func created(e metav1.ManagedFieldsEntry) bool {
	return e.Manager == Creator && e.FieldsV1 != nil && strings.Contains(e.FieldsV1.GetRawString(), `"f:restartPolicy"`)
}

// dropRecord removes the field managers' record of a Pod, unless it is to stay. The patch tests that no
// server-side apply came in between: the API server lists those entries first.
func (p *Operations) dropRecord(pod *corev1.Pod) {
	if KeepsRecord(pod) {
		return
	}
	p.test("/metadata/managedFields/0/operation", metav1.ManagedFieldsOperationUpdate)
	// One empty entry means no record; an empty list would leave the record unchanged.
	p.replace("/metadata/managedFields", []metav1.ManagedFieldsEntry{{}})
}

// continueUpdate adds the next step of an update to a patch, if it is due for the Pod as it is. The
// patch depends on the previous containers being ready.
func (p *Operations) continueUpdate(pod *corev1.Pod, a *plan.Action, now time.Time) {
	labels, annotations := state(a, now)
	step, ok := inplace.Next(pod, now)
	if !ok {
		p.metadata(pod, a, labels, annotations)
		return
	}
	maps.Copy(labels, inplace.Values(step.Labels))
	maps.Copy(annotations, inplace.Values(step.Annotations))
	p.testContainersReady("containerStatuses", pod.Status.ContainerStatuses)
	p.testContainersReady("initContainerStatuses", pod.Status.InitContainerStatuses)
	p.step(pod, a, step, annotations)
	p.metadata(pod, a, labels, annotations)
}

// testContainersReady tests that the containers that were observed ready still are.
func (p *Operations) testContainersReady(field string, statuses []corev1.ContainerStatus) {
	for i := range statuses {
		if statuses[i].Ready {
			p.test(fmt.Sprintf("/status/%s/%d/name", field, i), statuses[i].Name)
			p.test(fmt.Sprintf("/status/%s/%d/ready", field, i), true)
		}
	}
}

// resize sets the cpu and memory that the update's record asks for; nil if the containers
// have them. The patch depends on that record, and on the Pod being out of service.
func resize(pod *corev1.Pod, a *plan.Action) []byte {
	wanted := inplace.Resizes(pod)
	if len(wanted) == 0 || apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]) != apps.StateUpdating {
		return nil
	}
	p := basis(pod)
	p.testDrained(pod, a)
	p.testSpec(pod)
	inContainers(&p, pod, "add", "resources", wanted)
	return encode.JSON(p)
}

// Release removes an owner from a Pod. It tests the labels that do not match.
func Release(pod *corev1.Pod, owner types.UID) []byte {
	p := basis(pod)
	i := slices.IndexFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == owner })
	switch {
	case i < 0: // nothing to remove; the tests confirm that
	case len(pod.OwnerReferences) == 1:
		p.remove("/metadata/ownerReferences")
	default:
		p.remove(fmt.Sprintf("/metadata/ownerReferences/%d", i))
	}
	return encode.JSON(p)
}
