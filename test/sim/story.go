// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/model"
)

// story records what happened and is formatted only on request: successful runs are
// never put into words.
type story struct{ lines []line }

type line struct {
	at    time.Time
	actor string
	// text describes it; "" if nobody needs to know.
	text func() string
}

// say notes an event that is not a commit.
func (w *World) say(actor, format string, args ...any) {
	w.story.lines = append(w.story.lines, line{w.now(), actor, func() string { return fmt.Sprintf(format, args...) }})
}

// record notes a commit.
func (w *World) record(c *model.Commit) {
	w.story.lines = append(w.story.lines, line{c.At, c.Actor, func() string { return describe(c) }})
}

// String describes an event; "" if nobody needs to know.
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
	var out []string
	for i := range s.lines {
		if text := s.lines[i].String(); text != "" {
			out = append(out, text)
		}
	}
	return out
}

// describe describes a commit; "" if nobody needs to know.
func describe(c *model.Commit) string {
	name := c.Object().GetName()
	switch c.Kind {
	case model.Pods:
		return describePod(c)
	case model.CloneSets:
		return describeSet(c)
	}
	switch {
	case c.Old == nil:
		return fmt.Sprintf("creates %s %s", c.Kind, name)
	case c.New == nil:
		return fmt.Sprintf("removes %s %s", c.Kind, name)
	case c.Old.GetDeletionTimestamp() == nil && c.New.GetDeletionTimestamp() != nil:
		return fmt.Sprintf("changes %s %s: to be deleted", c.Kind, name)
	}
	if keys := changed(c.Old.GetAnnotations(), c.New.GetAnnotations()); len(keys) > 0 {
		return fmt.Sprintf("changes %s %s: annotation %s", c.Kind, name, keys[0])
	}
	return fmt.Sprintf("changes %s %s", c.Kind, name)
}

func describePod(c *model.Commit) string {
	old, pod := c.Pods()
	switch {
	case old == nil:
		return fmt.Sprintf("creates Pod %s of revision %s with %s", pod.Name, pod.Labels[apps.LabelTemplateHash], imagesOf(&pod.Spec))
	case pod == nil:
		return fmt.Sprintf("removes Pod %s for good", old.Name)
	}
	changes := podChanges(old, pod)
	if len(changes) == 0 {
		return ""
	}
	return fmt.Sprintf("changes Pod %s: %s", pod.Name, strings.Join(changes, ", "))
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
	owned, owns := len(old.OwnerReferences), len(pod.OwnerReferences)
	add(owned != owns, "%d owners instead of %d", owns, owned)
	return append(out, statusChanges(old, pod)...)
}

func finalizerChanges(old, finalizers []string) []string {
	var out []string
	for _, f := range lacking(finalizers, old) {
		out = append(out, fmt.Sprintf("finalizer %s added", f))
	}
	for _, f := range lacking(old, finalizers) {
		out = append(out, fmt.Sprintf("finalizer %s removed", f))
	}
	return out
}

// lacking are those of some strings that others lack.
func lacking(some, others []string) []string {
	return slices.DeleteFunc(slices.Clone(some), func(s string) bool { return slices.Contains(others, s) })
}

func labelChanges(old, labels map[string]string) []string {
	var out []string
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

// changed are the keys of which two maps hold different values, in order.
func changed(old, new map[string]string) []string {
	return slices.DeleteFunc(sortedKeys(old, new), func(key string) bool {
		was, had := old[key]
		is, has := new[key]
		return was == is && had == has
	})
}

// sortedKeys are the keys of two maps.
func sortedKeys(a, b map[string]string) []string {
	return sets.List(sets.KeySet(a).Union(sets.KeySet(b)))
}

func statusChanges(old, pod *corev1.Pod) []string {
	var out []string
	for _, c := range pod.Status.Conditions {
		if before := model.Condition(old, c.Type); before.Status != c.Status && c.Type != corev1.ContainersReady {
			out = append(out, fmt.Sprintf("%s=%s", c.Type, c.Status))
		}
	}
	return append(out, containerChanges(old, pod)...)
}

func containerChanges(old, pod *corev1.Pod) []string {
	var out []string
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

func describeSet(c *model.Commit) string {
	set := c.Object().(*apps.CloneSet)
	old, _ := c.Old.(*apps.CloneSet)
	switch {
	case old == nil:
		return fmt.Sprintf("creates CloneSet %s: %s", set.Name, describeSpec(set))
	case c.New == nil:
		return fmt.Sprintf("removes CloneSet %s", set.Name)
	case old.DeletionTimestamp == nil && set.DeletionTimestamp != nil:
		return strings.Join(append([]string{"deletes CloneSet " + set.Name}, finalizerChanges(old.Finalizers, set.Finalizers)...), ", ")
	case !slices.Equal(old.Finalizers, set.Finalizers):
		return fmt.Sprintf("changes CloneSet %s: %s", set.Name, strings.Join(finalizerChanges(old.Finalizers, set.Finalizers), ", "))
	case old.Generation != set.Generation || len(old.Labels) != len(set.Labels):
		return fmt.Sprintf("changes CloneSet %s: %s", set.Name, describeSpec(set))
	}
	s := &set.Status
	text := fmt.Sprintf("notes in the status: %d Pods, %d ready, %d available; updated %d, %d ready, %d available of %d; current %s, update %s",
		s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.UpdatedReplicas, s.UpdatedReadyReplicas,
		s.UpdatedAvailableReplicas, s.ExpectedUpdatedReplicas, hash(s.CurrentRevision), hash(s.UpdateRevision))
	for _, condition := range s.Conditions {
		if condition.Status == corev1.ConditionTrue {
			text += fmt.Sprintf("; %s: %s", condition.Type, condition.Message)
		}
	}
	return text
}

func hash(revision string) string { return revision[strings.LastIndex(revision, "-")+1:] }

func imagesOf(spec *corev1.PodSpec) string {
	var images []string
	for i := range spec.Containers {
		images = append(images, spec.Containers[i].Image)
	}
	return strings.Join(images, "+")
}

// describeSpec describes the relevant parts of a CloneSet's spec.
func describeSpec(set *apps.CloneSet) string {
	u := &set.Spec.UpdateStrategy
	parts := []string{fmt.Sprintf("%d replicas", replicas(set)), templateText(set), string(u.Type)}
	add := func(name string, value *apps.Count) {
		if value != nil {
			parts = append(parts, name+" "+value.IntOrString().String())
		}
	}
	add("partition", u.Partition)
	add("maxUnavailable", u.MaxUnavailable)
	add("maxSurge", u.MaxSurge)
	add("scaleStrategy.maxUnavailable", set.Spec.ScaleStrategy.MaxUnavailable)
	if u.Paused {
		parts = append(parts, "paused")
	}
	if u.InPlaceUpdateStrategy != nil {
		parts = append(parts, fmt.Sprintf("grace %ds", u.InPlaceUpdateStrategy.GracePeriodSeconds))
	}
	if set.Spec.MinReadySeconds > 0 {
		parts = append(parts, fmt.Sprintf("minReady %ds", set.Spec.MinReadySeconds))
	}
	if names := set.Spec.ScaleStrategy.PodsToDelete; len(names) > 0 {
		parts = append(parts, "podsToDelete "+strings.Join(names, " "))
	}
	if set.Labels[apps.LabelScalingExcludePreparingDelete] == "true" {
		parts = append(parts, "PreparingDelete not counted")
	}
	if text := claimsText(set); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(append(parts, hooksText(set.Spec.Lifecycle)), ", ")
}

func templateText(set *apps.CloneSet) string {
	template := must(set.Spec.Template.Decode())
	text := imagesOf(&template.Spec)
	if tier := template.Labels["tier"]; tier != "" {
		text += " tier=" + tier
	}
	if cpu, ok := template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]; ok {
		text += " cpu " + cpu.String()
	}
	if env := template.Spec.Containers[0].Env; len(env) > 0 {
		text += " env " + env[0].Value
	}
	return text
}

func hooksText(l *apps.Lifecycle) string {
	if l == nil {
		return "no hooks"
	}
	var parts []string
	for _, h := range []struct {
		name string
		hook *apps.LifecycleHook
	}{{"preNormal", l.PreNormal}, {"inPlaceUpdate", l.InPlaceUpdate}, {"preDelete", l.PreDelete}} {
		if h.hook == nil {
			continue
		}
		keys := slices.Clone(h.hook.FinalizersHandler)
		for _, key := range sortedKeys(h.hook.LabelsHandler, nil) {
			keys = append(keys, key+"="+h.hook.LabelsHandler[key])
		}
		text := h.name + " by " + strings.Join(keys, " and ")
		if h.hook.MarkPodNotReady {
			text += " (marks not ready)"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}
