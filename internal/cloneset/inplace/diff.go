// SPDX-License-Identifier: Apache-2.0

// Package inplace computes how a Pod gets from one revision of its template to another
// without being recreated, and when the kubelet has done so. It is pure.
package inplace

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// Change is the change of a Pod by an in-place update.
type Change struct {
	// Images are the new images by container, sidecars among the init containers
	// included.
	Images map[string]string
	// Resources are the complete new cpu and memory by container.
	Resources map[string]corev1.ResourceRequirements
	// Labels and Annotations are the new values by key; nil removes the key.
	Labels, Annotations map[string]*string
	// Rereads are containers that have to restart because their environment has a label or an annotation
	// that changes, with the path of that. For a Pod they become Images.
	Rereads map[string]string
	// Unranked names the first container that changes together with others and has an
	// unreadable launch priority; "" if there is none.
	Unranked string
}

// Drains reports whether the change touches a container: then the Pod must be out of its
// endpoints.
func (c Change) Drains() bool { return len(c.Images)+len(c.Resources)+len(c.Rereads) > 0 }

// names lists, in order, the containers that it touches.
func (c Change) names() []string { return namesIn(c.Images, c.Resources) }

// WithoutResize returns an error if the change needs the subresource pods/resize; call it for an API
// server that lacks it.
func (c Change) WithoutResize() error {
	if len(c.Resources) == 0 {
		return nil
	}
	return &Refusal{
		Field: "cpu or memory of container " + slices.Sorted(maps.Keys(c.Resources))[0],
		Why:   "the API server has no subresource pods/resize, which Kubernetes has since 1.33",
	}
}

// Refusal is why two revisions cannot be updated in place.
type Refusal struct {
	// Field is the first field, in order, that only a new Pod can have.
	Field string
	// Why it cannot change; "" if it is no field that can ever change in place.
	Why string
}

// Error names the field and what is possible.
func (r *Refusal) Error() string {
	if r.Why != "" {
		return fmt.Sprintf("%s cannot change in place: %s", r.Field, r.Why)
	}
	return fmt.Sprintf("%s differs, and only the images, cpu and memory of containers, labels and annotations can change in place", r.Field)
}

// Diff returns the change from one raw template to another, or a *Refusal.
func Diff(from, to map[string]any) (*Change, error) {
	before, after := revision.Normalize(from), revision.Normalize(to)
	was, is := specOf(before), specOf(after)
	if field := firstDifference("spec.template", before, after, changeable(lasting(was), lasting(is))); field != "" {
		return nil, &Refusal{Field: field}
	}
	if refusal := pullsOtherwise(lasting(was), lasting(is)); refusal != nil {
		return nil, refusal
	}
	change := &Change{
		Images:      images(is),
		Labels:      changedKeys(from, to, "labels"),
		Annotations: changedKeys(from, to, "annotations"),
	}
	old := images(was)
	maps.DeleteFunc(change.Images, func(name, image string) bool { return old[name] == image })
	var refusal *Refusal
	if change.Resources, refusal = resizes(was, is); refusal != nil {
		return nil, refusal
	}
	change.Rereads = rereads(is, change)
	change.Unranked = unranked(is, change)
	return change, nil
}

// pullsOtherwise refuses a change of a container's pull policy, which a Pod keeps for life. Without a
// value it depends on the image's tag: an image with another tag may need another Pod. Both lists have
// the same containers.
func pullsOtherwise(was, is []container) *Refusal {
	for i := range min(len(was), len(is)) {
		if before, after := revision.PullPolicy(was[i].Container), revision.PullPolicy(is[i].Container); before != after {
			return &Refusal{Field: is[i].path + ".imagePullPolicy", Why: fmt.Sprintf(
				"it is %s, and %s for the image %s", before, after, is[i].Image)}
		}
	}
	return nil
}

// Pending returns the change that leads a Pod to a template, based on the Pod's containers, not on its
// labels: OpenKruise labels a Pod with the new revision before its grace period, and changes its
// containers only after it.
func Pending(pod *corev1.Pod, to map[string]any) *Change {
	spec := specOf(revision.Normalize(to))
	change := Change{Images: images(spec), Resources: wantedResources(spec)}.open(pod)
	change.Labels, change.Annotations = Values(revision.Strings(to, "labels")), Values(revision.Strings(to, "annotations"))
	return &change
}

// Values returns new values of labels or annotations, as Change has them.
func Values(values map[string]string) map[string]*string {
	out := make(map[string]*string, len(values))
	for key, value := range values {
		out[key] = &value
	}
	return out
}

// specOf reads the spec of a normalized template. An unreadable spec has no containers, so that none of
// its fields can change in place.
func specOf(template any) *corev1.PodSpec {
	members, _ := template.(map[string]any)
	raw, _ := members["spec"].(map[string]any)
	spec := &corev1.PodSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw, spec); err != nil {
		return &corev1.PodSpec{}
	}
	return spec
}

// container is a container that runs as long as its Pod, and its path in a CloneSet.
type container struct {
	*corev1.Container
	path string
}

// lasting lists the containers that run as long as their Pod. An init container that
// ends would not run again for a new image.
func lasting(spec *corev1.PodSpec) []container {
	var out []container
	for i := range spec.Containers {
		c := &spec.Containers[i]
		out = append(out, container{c, element("spec.template.spec.containers", i, c.Name)})
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			out = append(out, container{c, element("spec.template.spec.initContainers", i, c.Name)})
		}
	}
	return out
}

// images returns the image of each container that runs as long as its Pod.
func images(spec *corev1.PodSpec) map[string]string {
	out := map[string]string{}
	for _, c := range lasting(spec) {
		if c.Image != "" {
			out[c.Name] = c.Image
		}
	}
	return out
}

// changeable returns the paths of fields that can change in place between two lists of containers.
func changeable(was, is []container) sets.Set[string] {
	paths := sets.New("spec.template.metadata.labels", "spec.template.metadata.annotations", "spec.template.metadata.creationTimestamp")
	for i := range min(len(was), len(is)) {
		path := is[i].path
		if was[i].Image != "" && is[i].Image != "" {
			paths.Insert(path + ".image")
		}
		for _, name := range resizable() {
			paths.Insert(path+".resources.requests."+string(name), path+".resources.limits."+string(name))
		}
	}
	return paths
}

// changedKeys compares the string maps metadata.<field>.
func changedKeys(from, to map[string]any, field string) map[string]*string {
	is := revision.Strings(to, field)
	out := Values(is)
	for key, old := range revision.Strings(from, field) {
		switch value, ok := is[key]; {
		case !ok:
			out[key] = nil
		case value == old:
			delete(out, key)
		}
	}
	return out
}

// firstDifference names the first path, in order, at which two normalized values differ and must not;
// "" if there is none. They may differ at the paths in may.
func firstDifference(path string, a, b any, may sets.Set[string]) string {
	if may.Has(path) || reflect.DeepEqual(a, b) {
		return ""
	}
	mapA, okA := a.(map[string]any)
	mapB, okB := b.(map[string]any)
	if (okA || a == nil) && (okB || b == nil) {
		return firstInMaps(path, mapA, mapB, may)
	}
	listA, okA := a.([]any)
	listB, okB := b.([]any)
	if okA && okB && len(listA) == len(listB) {
		return firstInLists(path, listA, listB, may)
	}
	return path
}

func firstInMaps(path string, a, b map[string]any, may sets.Set[string]) string {
	for _, key := range namesIn(a, b) {
		if found := firstDifference(path+"."+key, a[key], b[key], may); found != "" {
			return found
		}
	}
	return ""
}

func firstInLists(path string, a, b []any, may sets.Set[string]) string {
	for i := range a {
		member, _ := b[i].(map[string]any)
		name, _ := member["name"].(string)
		if found := firstDifference(element(path, i, name), a[i], b[i], may); found != "" {
			return found
		}
	}
	return ""
}

// namesIn lists, in order, the names that either map has.
func namesIn[A, B any](a map[string]A, b map[string]B) []string {
	return sets.List(sets.KeySet(a).Union(sets.KeySet(b)))
}

// element identifies a member of a list by its name, if it has one.
func element(path string, index int, name string) string {
	if name == "" || strings.ContainsAny(name, "[]") {
		name = strconv.Itoa(index)
	}
	return path + "[" + name + "]"
}

// SameImage compares two image names.
func SameImage(a, b string) bool { return a == b || FullImage(a) == FullImage(b) }

// FullImage completes an image name. Without tag and digest a name means ":latest",
// without a registry it means Docker's; the colon of a registry's port does not start a
// tag.
func FullImage(name string) string {
	if name == "" {
		return ""
	}
	if !strings.Contains(name, "@") && strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		name += ":latest"
	}
	host, rest, found := strings.Cut(name, "/")
	switch {
	case !found:
		return "docker.io/library/" + name
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		return "docker.io/" + name
	case host == "index.docker.io":
		host = "docker.io"
	}
	if host == "docker.io" && !strings.Contains(rest, "/") {
		rest = "library/" + rest
	}
	return host + "/" + rest
}
