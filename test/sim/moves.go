// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/test/model"
)

// othersWiped: the controller changes only its own keys and those of the hooks and the
// template.
func othersWiped(w *podWrite) string {
	if w.old == nil || w.new == nil {
		return ""
	}
	for _, key := range changed(w.old.Labels, w.new.Labels) {
		if !w.own(key) {
			return fmt.Sprintf("label %s of Pod %s changes", key, w.name())
		}
	}
	for _, key := range changed(w.old.Annotations, w.new.Annotations) {
		if !w.own(key) {
			return fmt.Sprintf("annotation %s of Pod %s changes", key, w.name())
		}
	}
	for _, f := range append(slices.Clone(w.old.Finalizers), w.new.Finalizers...) {
		if slices.Contains(w.old.Finalizers, f) != slices.Contains(w.new.Finalizers, f) && !w.own(f) {
			return fmt.Sprintf("finalizer %s of Pod %s changes", f, w.name())
		}
	}
	return ""
}

func changed(old, new map[string]string) []string {
	var out []string
	for _, key := range sortedKeys(old, new) {
		was, had := old[key]
		is, has := new[key]
		if was != is || had != has {
			out = append(out, key)
		}
	}
	return out
}

// own reports whether a key belongs to the controller, a hook or a template. All other
// keys start with "other/".
func (w *podWrite) own(key string) bool { return !strings.HasPrefix(key, "other/") }

// moves are the allowed transitions.
var moves = map[apps.LifecycleState][]apps.LifecycleState{
	apps.StatePreparingNormal: {apps.StateNormal, apps.StatePreparingUpdate, apps.StateUpdating, apps.StatePreparingDelete},
	apps.StateNormal:          {apps.StatePreparingUpdate, apps.StateUpdating, apps.StatePreparingDelete},
	apps.StatePreparingUpdate: {apps.StateUpdating, apps.StateUpdated, apps.StateNormal, apps.StatePreparingNormal, apps.StatePreparingDelete},
	apps.StateUpdating:        {apps.StateUpdated, apps.StateNormal, apps.StatePreparingNormal, apps.StatePreparingDelete},
	apps.StateUpdated:         {apps.StateNormal, apps.StatePreparingNormal, apps.StatePreparingUpdate, apps.StatePreparingDelete},
	apps.StatePreparingDelete: {apps.StatePreparingNormal},
}

func illegalMove(w *podWrite) string {
	switch {
	case w.new == nil:
	case w.old == nil:
		if model.State(w.new) != apps.StatePreparingNormal {
			return fmt.Sprintf("Pod %s is created in %s", w.name(), model.State(w.new))
		}
	case w.moves() && !slices.Contains(moves[model.State(w.old)], model.State(w.new)):
		return fmt.Sprintf("Pod %s moves from %s to %s", w.name(), model.State(w.old), model.State(w.new))
	}
	return ""
}

// gateForced: no Pod becomes Normal before preNormal confirms it, or leaves an update
// before the inPlaceUpdate hook holds again.
func gateForced(w *podWrite) string {
	if !w.moves() || model.State(w.new) != apps.StateNormal {
		return ""
	}
	missing := w.hooks.PreNormal.Missing(w.old.Labels, w.old.Finalizers)
	if model.State(w.old) != apps.StatePreparingNormal {
		missing = append(missing, w.hooks.InPlaceUpdate.Missing(w.old.Labels, w.old.Finalizers)...)
	}
	if len(missing) > 0 {
		return fmt.Sprintf("Pod %s moves from %s to Normal, and its hooks have not set %s",
			w.name(), model.State(w.old), strings.Join(missing, ", "))
	}
	return ""
}

// doneTooEarly: a Pod leaves Updating only when the kubelet runs what the spec says and
// the Pod is back in service, so that whoever registers it sees it ready.
func doneTooEarly(w *podWrite) string {
	if !w.moves() || model.State(w.old) != apps.StateUpdating || model.State(w.new) == apps.StatePreparingDelete {
		return ""
	}
	if what := w.process.truth(w.old); what != "" {
		return fmt.Sprintf("Pod %s leaves Updating, but %s", w.name(), what)
	}
	if model.Condition(w.new, apps.ConditionInPlaceUpdateReady).Status == corev1.ConditionFalse {
		return fmt.Sprintf("Pod %s leaves Updating before it is back in service", w.name())
	}
	return ""
}

// wrongRevision: a new Pod gets the current revision while there are fewer old Pods
// than the partition keeps.
func wrongRevision(w *podWrite) string {
	current := w.set.Status.CurrentRevision
	if w.old != nil || current == "" || !of(w.new, w.update) || revision.Same(current, w.update) || !w.process.knows(current) {
		return ""
	}
	if old := w.after.count(w.countsAsOld); old < partitionOf(w.set) {
		return fmt.Sprintf("Pod %s is created of the update revision, with %d old Pods and a partition of %d",
			w.name(), old, partitionOf(w.set))
	}
	return ""
}

// keepsOld reports whether a Pod has an old revision and is to stay.
func (w *podWrite) keepsOld(pod *corev1.Pod) bool {
	return model.Active(pod) && !of(pod, w.update) && !doomed(pod, w.set)
}

// countsAsOld reports whether a Pod has an old revision when a new one is created. A
// Pod chosen by a scale-in counts: a growing set takes those back first, and if that
// write is refused, the next pass does it.
func (w *podWrite) countsAsOld(pod *corev1.Pod) bool {
	planned := model.State(pod) == apps.StatePreparingDelete && !specified(pod, w.set)
	return model.Active(pod) && !of(pod, w.update) && (planned || !doomed(pod, w.set))
}

// partitionOverrun: no Pod that the partition keeps is updated, or deleted for the
// update.
func partitionOverrun(w *podWrite) string {
	pod := w.after.find(w.uid())
	was := w.before.find(w.uid())
	if was == nil || !w.keepsOld(was) || (pod != nil && w.keepsOld(pod)) || w.frees() {
		return ""
	}
	if old := w.after.count(w.keepsOld); old < partitionOf(w.set) {
		return fmt.Sprintf("Pod %s leaves the old revision, %d Pods of it are left, and the partition is %d",
			w.name(), old, partitionOf(w.set))
	}
	return ""
}

// updatedAgainstWill: no update begins while paused, and none ever begins with
// OnDelete.
func updatedAgainstWill(w *podWrite) string {
	u := &w.set.Spec.UpdateStrategy
	begins := (w.updates() && !w.goesOn()) || (w.moves() && model.State(w.new) == apps.StatePreparingUpdate)
	switch {
	case !begins:
	case u.Paused:
		return fmt.Sprintf("Pod %s is updated while the set is paused", w.name())
	case u.Type == apps.UpdateOnDelete:
		return fmt.Sprintf("Pod %s is updated, and the type is OnDelete", w.name())
	}
	return ""
}
