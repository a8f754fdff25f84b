// SPDX-License-Identifier: Apache-2.0

// Package inplace computes how a Pod gets from one revision of its template to another
// without being recreated, and when the kubelet has done so. It is pure.
package inplace

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// Change is what an in-place update does to a Pod.
type Change struct {
	// Images are the new images by container, sidecars among the init containers
	// included.
	Images map[string]string
	// Resources are the complete new cpu and memory by container.
	Resources map[string]corev1.ResourceRequirements
	// Labels and Annotations are the new values by key; nil removes the key.
	Labels, Annotations map[string]*string
	// Unranked names the first container that changes together with others and has an
	// unreadable launch priority; "" if there is none.
	Unranked string
}

// Drains reports whether the change touches a container: then the Pod must be out of its
// endpoints.
func (c *Change) Drains() bool { return len(c.Images)+len(c.Resources) > 0 }

// WithoutResize refuses the change if it needs the subresource pods/resize, for an API
// server that lacks it.
func (c *Change) WithoutResize() error {
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
	change := &Change{
		Images:      map[string]string{},
		Labels:      changedKeys(from, to, "labels"),
		Annotations: changedKeys(from, to, "annotations"),
	}
	was, is := images(from), images(to)
	for name, image := range is {
		if old, ok := was[name]; ok && old != image {
			change.Images[name] = image
		}
	}
	if field := firstDifference("spec.template", revision.Normalize(rest(from)), revision.Normalize(rest(to))); field != "" {
		return nil, &Refusal{Field: field}
	}
	var refusal *Refusal
	if change.Resources, refusal = resizes(from, to); refusal != nil {
		return nil, refusal
	}
	change.Unranked = unranked(to, change)
	return change, nil
}

// Pending returns the change that leads a Pod to a template, based on what the Pod is,
// not on its labels: OpenKruise labels a Pod with the new revision before its grace
// period, and changes its containers only after it.
func Pending(pod *corev1.Pod, to map[string]any) *Change {
	open := desired{images(to), wantedResources(to)}.open(pod)
	return &Change{
		Images: open.images, Resources: open.resources,
		Labels: Values(revision.Strings(to, "labels")), Annotations: Values(revision.Strings(to, "annotations")),
	}
}

// Values are new values of labels or annotations, as Change has them.
func Values(values map[string]string) map[string]*string {
	out := make(map[string]*string, len(values))
	for key, value := range values {
		out[key] = &value
	}
	return out
}

// images returns the image of each container that runs as long as its Pod.
func images(template map[string]any) map[string]string {
	out := map[string]string{}
	for field, c := range containers(template) {
		image, _ := c["image"].(string)
		if name := nameOf(c); runsOn(field, c) && name != "" && image != "" {
			out[name] = image
		}
	}
	return out
}

// containers yields the containers of a template, each with the field that lists it.
func containers(template map[string]any) iter.Seq2[string, map[string]any] {
	return func(yield func(string, map[string]any) bool) {
		for _, field := range containerFields() {
			for _, item := range members(template, field) {
				if c, ok := item.(map[string]any); ok && !yield(field, c) {
					return
				}
			}
		}
	}
}

// containerFields are the fields of a Pod's spec that list containers.
func containerFields() []string { return []string{"containers", "initContainers"} }

func nameOf(container map[string]any) string {
	name, _ := container["name"].(string)
	return name
}

// runsOn reports whether the container runs as long as its Pod. An init container that
// ends would not run again for a new image.
func runsOn(field string, container map[string]any) bool {
	return field == "containers" || container["restartPolicy"] == "Always"
}

func members(template map[string]any, field string) []any {
	spec, _ := template["spec"].(map[string]any)
	list, _ := spec[field].([]any)
	return list
}

// rest is the template without what can change in place.
func rest(template map[string]any) map[string]any {
	out := maps.Clone(template)
	if metadata, ok := template["metadata"].(map[string]any); ok {
		metadata = maps.Clone(metadata)
		for _, key := range []string{"labels", "annotations", "creationTimestamp"} {
			delete(metadata, key)
		}
		out["metadata"] = metadata
	}
	spec, ok := template["spec"].(map[string]any)
	if !ok {
		return out
	}
	spec = maps.Clone(spec)
	for _, field := range containerFields() {
		if list := members(template, field); len(list) > 0 {
			spec[field] = withoutChangeable(field, list)
		}
	}
	out["spec"] = spec
	return out
}

func withoutChangeable(field string, list []any) []any {
	out := make([]any, len(list))
	for i, item := range list {
		out[i] = item
		c, ok := item.(map[string]any)
		if !ok || !runsOn(field, c) {
			continue
		}
		c = maps.Clone(c)
		if image, _ := c["image"].(string); image != "" {
			c["image"] = "*" // present, and free to change
		}
		if resources, ok := c["resources"].(map[string]any); ok {
			c["resources"] = withoutResizable(resources)
		}
		out[i] = c
	}
	return out
}

// changedKeys compares the string maps metadata.<field>.
func changedKeys(from, to map[string]any, field string) map[string]*string {
	was, is := revision.Strings(from, field), revision.Strings(to, field)
	out := map[string]*string{}
	for key, value := range is {
		if old, ok := was[key]; !ok || old != value {
			out[key] = &value
		}
	}
	for key := range was {
		if _, ok := is[key]; !ok {
			out[key] = nil
		}
	}
	return out
}

// firstDifference names the first path, in order, at which two normalized values differ;
// "" if they are equal.
func firstDifference(path string, a, b any) string {
	if reflect.DeepEqual(a, b) {
		return ""
	}
	found := ""
	mapA, okA := a.(map[string]any)
	mapB, okB := b.(map[string]any)
	if (okA || a == nil) && (okB || b == nil) {
		found = firstInMaps(path, mapA, mapB)
	}
	listA, okA := a.([]any)
	listB, okB := b.([]any)
	if okA && okB && len(listA) == len(listB) {
		found = firstInLists(path, listA, listB)
	}
	return cmp.Or(found, path)
}

func firstInMaps(path string, a, b map[string]any) string {
	for _, key := range namesIn(a, b) {
		if found := firstDifference(path+"."+key, a[key], b[key]); found != "" {
			return found
		}
	}
	return ""
}

func firstInLists(path string, a, b []any) string {
	for i := range a {
		if found := firstDifference(element(path, i, b[i]), a[i], b[i]); found != "" {
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
func element(path string, index int, value any) string {
	if member, ok := value.(map[string]any); ok {
		if name, ok := member["name"].(string); ok && !strings.ContainsAny(name, "[]") {
			return fmt.Sprintf("%s[%s]", path, name)
		}
	}
	return fmt.Sprintf("%s[%d]", path, index)
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
