// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/test/model"
)

// resourcesOf describes the resources of all containers.
func resourcesOf(spec *corev1.PodSpec) string {
	var all []string
	for i := range spec.Containers {
		all = append(all, model.ResourcesText(spec.Containers[i].Resources))
	}
	return strings.Trim(strings.Join(all, "+"), "+")
}

// priorityOf is the launch priority of a container.
func priorityOf(c *corev1.Container) (priority int) {
	for _, variable := range c.Env {
		if variable.Name == apps.EnvContainerPriority {
			priority, _ = strconv.Atoi(variable.Value) // 0 if it is no number
		}
	}
	return priority
}

// orderBroken: no container changes while one of a higher priority still has to change
// for the same revision, or has not reached its target; within one update, also not
// while that container is not ready.
func orderBroken(w *podWrite) string {
	if !w.changesContainers() || w.old.Spec.NodeName == "" {
		return ""
	}
	for i := range w.new.Spec.Containers {
		changed := &w.new.Spec.Containers[i]
		if same := &w.old.Spec.Containers[i]; same.Image == changed.Image && model.SameResources(same.Resources, changed.Resources) {
			continue
		}
		for j := range w.old.Spec.Containers {
			first := &w.old.Spec.Containers[j]
			if priorityOf(first) <= priorityOf(changed) {
				continue
			}
			if what := w.notYet(first, j, changed.Name); what != "" {
				return fmt.Sprintf("container %s of Pod %s changes, but %s, which goes before it, %s", changed.Name, w.name(), first.Name, what)
			}
		}
	}
	return ""
}

// notYet describes what a container that precedes another one still lacks; "" if
// nothing.
func (w *podWrite) notYet(c *corev1.Container, index int, other string) string {
	if t := templateOfPod(w.process.Server, w.new); t != nil && index < len(t.Spec.Containers) {
		if want := &t.Spec.Containers[index]; c.Image != want.Image || !model.SameResources(c.Resources, want.Resources) {
			return "is not of the revision yet"
		}
	}
	if r := w.process.nodes.pods[w.old.UID]; r != nil && r.Lacks(index, c) != "" {
		return r.Lacks(index, c)
	}
	if w.goesOn() && w.begun(c.Name) && !w.begun(other) && !model.ContainerStatus(w.old, c.Name).Ready {
		return "is not ready"
	}
	return ""
}

// begun reports whether, by the update's record, a container's turn has come.
func (w *podWrite) begun(name string) bool {
	state, err := inplace.ParseState(w.old.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil {
		return false
	}
	_, image := state.LastContainerStatuses[name]
	_, resources := state.Resources[name]
	return image || resources
}
