// SPDX-License-Identifier: Apache-2.0

// Package launch orders the first start of a Pod's containers by their launch priority: higher ones first,
// the next ones when those are ready. It is pure.
//
// A container that has to wait mounts a directory whose name is the value of an annotation of the Pod. Without
// the annotation the kubelet does not create the container, and tries again when the Pod changes. The
// annotations stay, so a container that restarts later does not wait.
package launch

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/list"
)

// Open is the value of an annotation that lets containers start: a directory's name.
const Open = "open"

const (
	volume    = "usher-launch"
	mountPath = "/run/usher-launch"
	// ordered is the value of apps.AnnotationLaunchPriority that makes the order of the containers that
	// of their start.
	ordered = "Ordered"
	// field is the reference to the annotation that a container waits for, without its end.
	field, fieldEnd = "metadata.annotations['" + apps.AnnotationLaunch, "']"
)

// Hold has the containers of a new Pod wait that do not start first. The spec is raw, so that fields which
// this program's libraries do not know stay.
func Hold(spec map[string]any, annotations map[string]string) {
	containers, _ := spec["containers"].([]any)
	ranks := make([]int64, len(containers))
	for i := range containers {
		if ranks[i] = priorityIn(containers[i]); annotations[apps.AnnotationLaunchPriority] == ordered {
			ranks[i] = int64(-i)
		}
	}
	held := false
	for i := range containers {
		if container, ok := containers[i].(map[string]any); ok && ranks[i] < slices.Max(ranks) {
			hold(container, ranks[i])
			held = true
		}
	}
	if held {
		add(spec, "volumes", map[string]any{"name": volume, "emptyDir": map[string]any{}})
	}
}

// hold has a container wait for the annotation of its rank.
func hold(container map[string]any, rank int64) {
	reference := map[string]any{"fieldPath": field + strconv.FormatInt(rank, 10) + fieldEnd}
	add(container, "env", map[string]any{"name": apps.EnvLaunch, "valueFrom": map[string]any{"fieldRef": reference}})
	add(container, "volumeMounts", map[string]any{
		"name": volume, "mountPath": mountPath, "subPathExpr": fmt.Sprintf("$(%s)", apps.EnvLaunch), "readOnly": true,
	})
}

func add(to map[string]any, field string, element map[string]any) {
	elements, _ := to[field].([]any)
	to[field] = append(elements, element)
}

// priorityIn returns the launch priority of a raw container.
func priorityIn(container any) int64 {
	members, _ := container.(map[string]any)
	env, _ := members["env"].([]any)
	for _, variable := range env {
		if v, _ := variable.(map[string]any); v["name"] == apps.EnvContainerPriority {
			value, _ := v["value"].(string)
			priority, _ := inplace.ParsePriority(value)
			return priority
		}
	}
	return 0
}

// Wait is what containers of a Pod wait for that have not been allowed to start.
type Wait struct {
	// Key is the annotation that lets the next ones start, which are Next.
	Key  string
	Next []string
	// First are the containers before them that are not ready yet; with none, they may start.
	First []string
}

// String says what the Pod waits for.
func (w *Wait) String() string {
	first, next := strings.Join(w.First, ", "), strings.Join(w.Next, ", ")
	return fmt.Sprintf("waits for its containers %s to be ready before it starts %s", first, next)
}

// Of returns the containers that may start next; nil if all may.
func Of(pod *corev1.Pod) *Wait {
	var closed []corev1.Container
	for _, c := range pod.Spec.Containers {
		if key := keyOf(&c); key != "" && pod.Annotations[key] == "" {
			closed = append(closed, c)
		}
	}
	if len(closed) == 0 {
		return nil
	}
	next := slices.MaxFunc(closed, func(a, b corev1.Container) int { return cmp.Compare(rank(pod, &a), rank(pod, &b)) })
	top := rank(pod, &next)
	return &Wait{
		Key:  keyOf(&next),
		Next: list.Map(list.Only(closed, func(c corev1.Container) bool { return rank(pod, &c) == top }), nameOf),
		First: list.Map(list.Only(pod.Spec.Containers, func(c corev1.Container) bool {
			status := inplace.StatusOf(pod, c.Name)
			return rank(pod, &c) > top && (status == nil || !status.Ready)
		}), nameOf),
	}
}

func nameOf(c corev1.Container) string { return c.Name }

// keyOf returns the annotation that a container waits for; "" if it waits for none.
func keyOf(c *corev1.Container) string {
	v := list.Find(c.Env, func(v *corev1.EnvVar) bool {
		return v.Name == apps.EnvLaunch && v.ValueFrom != nil && v.ValueFrom.FieldRef != nil
	})
	if v == nil {
		return ""
	}
	rank, found := strings.CutPrefix(v.ValueFrom.FieldRef.FieldPath, field)
	if !found {
		return ""
	}
	return apps.AnnotationLaunch + strings.TrimSuffix(rank, fieldEnd)
}

// rank returns the priority with which a container starts. One that others have added to the Pod has its own
// priority, or 0.
func rank(pod *corev1.Pod, c *corev1.Container) int64 {
	key := keyOf(c)
	switch {
	case key != "":
		rank, _ := strconv.ParseInt(strings.TrimPrefix(key, apps.AnnotationLaunch), 10, 64)
		return rank
	case pod.Annotations[apps.AnnotationLaunchPriority] == ordered:
		return 0
	}
	return inplace.Priority(c)
}

// Holds reports whether a container waits because it may not start yet: to the kubelet, that is an error.
func Holds(waiting *corev1.ContainerStateWaiting) bool {
	return waiting.Reason == "CreateContainerConfigError" && strings.Contains(waiting.Message, apps.EnvLaunch)
}
