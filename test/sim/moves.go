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
func othersWiped(d *deed) string {
	if d.old == nil || d.new == nil {
		return ""
	}
	for _, key := range changed(d.old.Labels, d.new.Labels) {
		if !d.own(key) {
			return fmt.Sprintf("label %s of Pod %s changes", key, d.name())
		}
	}
	for _, key := range changed(d.old.Annotations, d.new.Annotations) {
		if !d.own(key) {
			return fmt.Sprintf("annotation %s of Pod %s changes", key, d.name())
		}
	}
	for _, f := range append(slices.Clone(d.old.Finalizers), d.new.Finalizers...) {
		if slices.Contains(d.old.Finalizers, f) != slices.Contains(d.new.Finalizers, f) && !d.own(f) {
			return fmt.Sprintf("finalizer %s of Pod %s changes", f, d.name())
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
func (d *deed) own(key string) bool { return !strings.HasPrefix(key, "other/") }

// moves are the allowed transitions.
var moves = map[apps.LifecycleState][]apps.LifecycleState{
	apps.StatePreparingNormal: {apps.StateNormal, apps.StatePreparingUpdate, apps.StateUpdating, apps.StatePreparingDelete},
	apps.StateNormal:          {apps.StatePreparingUpdate, apps.StateUpdating, apps.StatePreparingDelete},
	apps.StatePreparingUpdate: {apps.StateUpdating, apps.StateUpdated, apps.StateNormal, apps.StatePreparingNormal, apps.StatePreparingDelete},
	apps.StateUpdating:        {apps.StateUpdated, apps.StateNormal, apps.StatePreparingNormal, apps.StatePreparingDelete},
	apps.StateUpdated:         {apps.StateNormal, apps.StatePreparingNormal, apps.StatePreparingUpdate, apps.StatePreparingDelete},
	apps.StatePreparingDelete: {apps.StatePreparingNormal},
}

func illegalMove(d *deed) string {
	switch {
	case d.new == nil:
	case d.old == nil:
		if model.State(d.new) != apps.StatePreparingNormal {
			return fmt.Sprintf("Pod %s is created in %s", d.name(), model.State(d.new))
		}
	case d.moves() && !slices.Contains(moves[model.State(d.old)], model.State(d.new)):
		return fmt.Sprintf("Pod %s moves from %s to %s", d.name(), model.State(d.old), model.State(d.new))
	}
	return ""
}

// gateForced: no Pod becomes Normal before preNormal confirms it, or leaves an update
// before the inPlaceUpdate hook holds again.
func gateForced(d *deed) string {
	if !d.moves() || model.State(d.new) != apps.StateNormal {
		return ""
	}
	missing := d.hooks.PreNormal.Missing(d.old.Labels, d.old.Finalizers)
	if model.State(d.old) != apps.StatePreparingNormal {
		missing = append(missing, d.hooks.InPlaceUpdate.Missing(d.old.Labels, d.old.Finalizers)...)
	}
	if len(missing) > 0 {
		return fmt.Sprintf("Pod %s moves from %s to Normal, and its hooks have not set %s",
			d.name(), model.State(d.old), strings.Join(missing, ", "))
	}
	return ""
}

// doneTooEarly: a Pod leaves Updating only when the kubelet runs what the spec says and
// the Pod is back in service, so that whoever registers it sees it ready.
func doneTooEarly(d *deed) string {
	if !d.moves() || model.State(d.old) != apps.StateUpdating || model.State(d.new) == apps.StatePreparingDelete {
		return ""
	}
	if what := d.process.truth(d.old); what != "" {
		return fmt.Sprintf("Pod %s leaves Updating, but %s", d.name(), what)
	}
	if model.Condition(d.new, apps.ConditionInPlaceUpdateReady).Status == corev1.ConditionFalse {
		return fmt.Sprintf("Pod %s leaves Updating before it is back in service", d.name())
	}
	return ""
}

// wrongRevision: a new Pod gets the current revision while there are fewer old Pods
// than the partition keeps.
func wrongRevision(d *deed) string {
	current := d.set.Status.CurrentRevision
	if d.old != nil || current == "" || !of(d.new, d.update) || revision.Same(current, d.update) || !d.process.knows(current) {
		return ""
	}
	if old := d.after.count(d.countsAsOld); old < partitionOf(d.set) {
		return fmt.Sprintf("Pod %s is created of the update revision, with %d old Pods and a partition of %d",
			d.name(), old, partitionOf(d.set))
	}
	return ""
}

// keepsOld reports whether a Pod has an old revision and is to stay.
func (d *deed) keepsOld(pod *corev1.Pod) bool {
	return model.Active(pod) && !of(pod, d.update) && !doomed(pod, d.set)
}

// countsAsOld reports whether a Pod has an old revision when a new one is created. A
// Pod chosen by a scale-in counts: a growing set takes those back first, and if that
// write is refused, the next pass does it.
func (d *deed) countsAsOld(pod *corev1.Pod) bool {
	planned := model.State(pod) == apps.StatePreparingDelete && !specified(pod, d.set)
	return model.Active(pod) && !of(pod, d.update) && (planned || !doomed(pod, d.set))
}

// partitionOverrun: no Pod that the partition keeps is updated, or deleted for the
// update.
func partitionOverrun(d *deed) string {
	pod := d.after.find(d.uid())
	was := d.before.find(d.uid())
	if was == nil || !d.keepsOld(was) || (pod != nil && d.keepsOld(pod)) || d.frees() {
		return ""
	}
	if old := d.after.count(d.keepsOld); old < partitionOf(d.set) {
		return fmt.Sprintf("Pod %s leaves the old revision, %d Pods of it are left, and the partition is %d",
			d.name(), old, partitionOf(d.set))
	}
	return ""
}

// updatedAgainstWill: no update begins while paused, and none ever begins with
// OnDelete.
func updatedAgainstWill(d *deed) string {
	u := &d.set.Spec.UpdateStrategy
	begins := (d.updates() && !d.goesOn()) || (d.moves() && model.State(d.new) == apps.StatePreparingUpdate)
	switch {
	case !begins:
	case u.Paused:
		return fmt.Sprintf("Pod %s is updated while the set is paused", d.name())
	case u.Type == apps.UpdateOnDelete:
		return fmt.Sprintf("Pod %s is updated, and the type is OnDelete", d.name())
	}
	return ""
}
