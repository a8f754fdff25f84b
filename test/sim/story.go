// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/model"
)

// story records what happened and is formatted only on request: successful runs are
// never put into words.
type story struct{ lines []line }

type line struct {
	at    time.Time
	actor string
	// text describes the event; "" if it is not worth a line.
	text func() string
}

// say records an event that is not a commit.
func (w *World) say(actor, format string, args ...any) {
	w.story.lines = append(w.story.lines, line{w.now(), actor, func() string { return fmt.Sprintf(format, args...) }})
}

// record records a commit.
func (w *World) record(c *model.Commit) {
	w.story.lines = append(w.story.lines, line{c.At, c.Actor, func() string { return describe(c) }})
}

// String describes an event; "" if it is not worth a line.
func (l *line) String() string {
	text := l.text()
	if text == "" {
		return ""
	}
	return fmt.Sprintf("%-10s %s", l.actor, text)
}

// Story describes the run, one line per event.
func (w *World) Story() string {
	var b strings.Builder
	for i := range w.story.lines {
		if text := w.story.lines[i].String(); text != "" {
			fmt.Fprintf(&b, "%9.3fs %s\n", w.story.lines[i].at.Sub(epoch).Seconds(), text)
		}
	}
	return b.String()
}

// text describes the events without their times.
func (s story) text() []string {
	return list.Only(list.Map(s.lines, func(l line) string { return l.String() }), func(text string) bool { return text != "" })
}

// describe describes a commit; "" if it is not worth a line.
func describe(c *model.Commit) string {
	what := fmt.Sprintf("%s %s", c.Kind, c.Object().GetName())
	old, pod := c.Pods()
	set, isSet := c.New.(*apps.CloneSet)
	var all []string
	switch {
	case c.New == nil:
		return "removes " + what
	case c.Old == nil && pod != nil:
		return fmt.Sprintf("creates %s of revision %s with %s", what, pod.Labels[apps.LabelTemplateHash], imagesOf(&pod.Spec))
	case c.Old == nil && isSet:
		return fmt.Sprintf("creates %s: %s", what, strings.Join(changes(&apps.CloneSet{}, set), ", "))
	case c.Old == nil:
		return "creates " + what
	case pod != nil:
		all = podChanges(old, pod)
	default:
		all = changes(c.Old, c.New)
	}
	switch {
	case len(all) > 0:
		return fmt.Sprintf("changes %s: %s", what, strings.Join(all, ", "))
	case isSet:
		return statusText(&set.Status)
	case pod != nil:
		return ""
	}
	return "changes " + what
}

// changes describes the change of an object other than a Pod, except for its status.
func changes(old, next client.Object) (out []string) {
	if old.GetDeletionTimestamp() == nil && next.GetDeletionTimestamp() != nil {
		out = append(out, "to be deleted")
	}
	out = append(out, finalizerChanges(old.GetFinalizers(), next.GetFinalizers())...)
	was, is := fieldsOf(old), fieldsOf(next)
	for _, path := range changed(was, is) {
		out = append(out, path+" "+cmp.Or(is[path], "removed"))
	}
	return out
}

// fieldsOf returns the values in the spec, the labels and the annotations of an object, by their paths.
func fieldsOf(object client.Object) map[string]string {
	document := decode[struct {
		Spec     any
		Metadata struct{ Labels, Annotations any }
	}](must(json.Marshal(object)))
	out := map[string]string{}
	addFields(out, "", document.Spec)
	addFields(out, "labels.", document.Metadata.Labels)
	addFields(out, "annotations.", document.Metadata.Annotations)
	return out
}

func addFields(to map[string]string, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, field := range value {
			addFields(to, path+key+".", field)
		}
	case []any:
		for i, item := range value {
			addFields(to, fmt.Sprint(path, i, "."), item)
		}
	case nil:
	default:
		to[strings.TrimSuffix(path, ".")] = fmt.Sprint(value)
	}
}

func podChanges(old, pod *corev1.Pod) []string {
	var out []string
	add := func(changed bool, format string, args ...any) {
		if changed {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(old.DeletionTimestamp == nil && pod.DeletionTimestamp != nil, "to be deleted")
	for _, of := range []func(*corev1.PodSpec) string{imagesOf, resourcesOf} {
		was, is := of(&old.Spec), of(&pod.Spec)
		add(was != is, "%s instead of %s", is, was)
	}
	add(old.Spec.NodeName != pod.Spec.NodeName, "on %s", pod.Spec.NodeName)
	add(old.Status.Phase != pod.Status.Phase, "%s", pod.Status.Phase)
	out = append(out, labelChanges(old.Labels, pod.Labels)...)
	out = append(out, finalizerChanges(old.Finalizers, pod.Finalizers)...)
	for _, key := range changed(old.Annotations, pod.Annotations) {
		add(strings.HasPrefix(key, apps.AnnotationLaunch), "%s=%s", key, pod.Annotations[key])
	}
	owned, owns := len(old.OwnerReferences), len(pod.OwnerReferences)
	add(owned != owns, "%d owners instead of %d", owns, owned)
	return append(out, statusChanges(old, pod)...)
}

func finalizerChanges(old, finalizers []string) []string {
	added := list.Map(lacking(finalizers, old), func(f string) string { return "finalizer " + f + " added" })
	removed := list.Map(lacking(old, finalizers), func(f string) string { return "finalizer " + f + " removed" })
	return append(added, removed...)
}

// lacking returns the strings of some that are missing in others.
func lacking(some, others []string) []string {
	return slices.DeleteFunc(slices.Clone(some), func(s string) bool { return slices.Contains(others, s) })
}

func labelChanges(old, labels map[string]string) (out []string) {
	for _, key := range changed(old, labels) {
		is, has := labels[key]
		name := key[strings.LastIndex(key, "/")+1:]
		switch {
		case key == apps.LabelRevision: // already covered by pod-template-hash
		case !has:
			out = append(out, fmt.Sprintf("label %s removed", name))
		case key == apps.LabelLifecycleState:
			out = append(out, fmt.Sprintf("%s → %s", cmp.Or(old[key], "(no state)"), is))
		default:
			out = append(out, fmt.Sprintf("label %s=%s", name, is))
		}
	}
	return out
}

// changed returns the keys with different values in two maps, in order.
func changed(old, new map[string]string) []string {
	return slices.DeleteFunc(sets.List(sets.KeySet(old).Union(sets.KeySet(new))), func(key string) bool {
		was, had := old[key]
		is, has := new[key]
		return was == is && had == has
	})
}

func statusChanges(old, pod *corev1.Pod) (out []string) {
	for _, c := range pod.Status.Conditions {
		if before := model.Condition(old, c.Type); before.Status != c.Status && c.Type != corev1.ContainersReady {
			out = append(out, fmt.Sprintf("%s=%s", c.Type, c.Status))
		}
	}
	return append(out, containerChanges(old, pod)...)
}

func containerChanges(old, pod *corev1.Pod) (out []string) {
	for _, c := range pod.Status.ContainerStatuses {
		before := model.ContainerStatus(old, c.Name)
		if before.ContainerID != c.ContainerID && c.ContainerID != "" {
			out = append(out, fmt.Sprintf("container %s runs %s", c.Name, c.Image))
		}
		if before.Resources != nil && c.Resources != nil && !model.SameResources(*before.Resources, *c.Resources) {
			out = append(out, fmt.Sprintf("container %s has %s", c.Name, model.ResourcesText(*c.Resources)))
		}
		if before.State.Waiting == nil && c.State.Waiting != nil {
			out = append(out, fmt.Sprintf("container %s waits: %s", c.Name, c.State.Waiting.Reason))
		}
	}
	return out
}

func statusText(s *apps.CloneSetStatus) string {
	text := fmt.Sprintf("notes in the status: %d Pods, %d ready, %d available; updated %d, %d ready, %d available of %d; current %s, update %s",
		s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.UpdatedReplicas, s.UpdatedReadyReplicas,
		s.UpdatedAvailableReplicas, s.ExpectedUpdatedReplicas, revision.Short(s.CurrentRevision), revision.Short(s.UpdateRevision))
	for _, condition := range s.Conditions {
		if condition.Status == corev1.ConditionTrue {
			text += fmt.Sprintf("; %s: %s", condition.Type, condition.Message)
		}
	}
	return text
}

func imagesOf(spec *corev1.PodSpec) string {
	return strings.Join(list.Map(spec.Containers, func(c corev1.Container) string { return c.Image }), "+")
}
