// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// othersWiped: the controller changes keys of its own, of the hooks and of the
// template, and nothing else.
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

// own says that a key is the controller's, a hook's or a template's. Keys that
// nobody of these uses start with "other/".
func (d *deed) own(key string) bool { return !strings.HasPrefix(key, "other/") }

// moves are the transitions that there are.
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
		if state(d.new) != apps.StatePreparingNormal {
			return fmt.Sprintf("Pod %s is created in %s", d.name(), state(d.new))
		}
	case d.moves() && !slices.Contains(moves[state(d.old)], state(d.new)):
		return fmt.Sprintf("Pod %s moves from %s to %s", d.name(), state(d.old), state(d.new))
	}
	return ""
}

// gateForced: nobody becomes Normal before preNormal has said yes, or out of an
// update while the inPlaceUpdate hook has not taken hold again.
func gateForced(d *deed) string {
	if !d.moves() || state(d.new) != apps.StateNormal {
		return ""
	}
	missing := d.hooks.PreNormal.Missing(d.old.Labels, d.old.Finalizers)
	if state(d.old) != apps.StatePreparingNormal {
		missing = append(missing, d.hooks.InPlaceUpdate.Missing(d.old.Labels, d.old.Finalizers)...)
	}
	if len(missing) > 0 {
		return fmt.Sprintf("Pod %s moves from %s to Normal, and its hooks have not set %s",
			d.name(), state(d.old), strings.Join(missing, ", "))
	}
	return ""
}

// doneTooEarly: out of Updating only when the kubelet runs what the spec says,
// and with the Pod back in service, so that whoever registers it sees it ready.
func doneTooEarly(d *deed) string {
	if !d.moves() || state(d.old) != apps.StateUpdating || state(d.new) == apps.StatePreparingDelete {
		return ""
	}
	if what := d.process.truth(d.old); what != "" {
		return fmt.Sprintf("Pod %s leaves Updating, but %s", d.name(), what)
	}
	if condition(d.new, apps.ConditionInPlaceUpdateReady).Status == corev1.ConditionFalse {
		return fmt.Sprintf("Pod %s leaves Updating before it is back in service", d.name())
	}
	return ""
}

// wrongRevision: a new Pod is of the current revision while fewer old ones are
// there than the partition keeps.
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

// keepsOld says that a Pod is of an old revision and is to stay.
func (d *deed) keepsOld(pod *corev1.Pod) bool {
	return active(pod) && !of(pod, d.update) && !doomed(pod, d.set)
}

// countsAsOld says that a Pod is of an old revision when a new one is made. One that
// a scale-in had chosen counts: before a set grows it takes those back, and if the
// write is refused the next pass does.
func (d *deed) countsAsOld(pod *corev1.Pod) bool {
	planned := state(pod) == apps.StatePreparingDelete && !specified(pod, d.set)
	return active(pod) && !of(pod, d.update) && (planned || !doomed(pod, d.set))
}

// partitionOverrun: no Pod that the partition keeps changes to the update
// revision or goes for its sake.
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

// updatedAgainstWill: while paused no update begins, and with OnDelete never.
func updatedAgainstWill(d *deed) string {
	u := &d.set.Spec.UpdateStrategy
	begins := (d.updates() && !d.goesOn()) || (d.moves() && state(d.new) == apps.StatePreparingUpdate)
	switch {
	case !begins:
	case u.Paused:
		return fmt.Sprintf("Pod %s is updated while the set is paused", d.name())
	case u.Type == apps.UpdateOnDelete:
		return fmt.Sprintf("Pod %s is updated, and the type is OnDelete", d.name())
	}
	return ""
}
