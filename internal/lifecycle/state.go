// SPDX-License-Identifier: Apache-2.0

package lifecycle

import apps "github.com/usher-dev/usher/api/apps/v1alpha1"

// Reasons of a transition.
const (
	// ReasonScheduled: no preNormal hook, and the Pod has a node.
	ReasonScheduled = "Scheduled"
	// ReasonPreNormalDone: every label and finalizer of the preNormal hook is there.
	ReasonPreNormalDone = "PreNormalDone"
	// ReasonUpdateDone: the kubelet runs what the in-place update asked for.
	ReasonUpdateDone = "UpdateDone"
	// ReasonUpdateDropped: the Pod's revision is the wanted one again.
	ReasonUpdateDropped = "UpdateDropped"
	// ReasonHookRestored: the inPlaceUpdate hook holds the Pod again, or is gone.
	ReasonHookRestored = "HookRestored"
)

// Pod is what the state machine reads of a Pod.
type Pod struct {
	// State is the Pod's state; "" counts as Normal.
	State apps.LifecycleState
	// Labels and Finalizers of the Pod.
	Labels     map[string]string
	Finalizers []string
	// Scheduled says that the Pod has a node.
	Scheduled bool
	// UpdateDone says that the kubelet runs what the in-place update asked for.
	UpdateDone bool
	// UpdateWanted says that the Pod's revision is not the one it should have,
	// or that its update is under way.
	UpdateWanted bool
}

// Next gives the state that the Pod moves to by itself, and why; the same state
// with no reason if it stays. Moves that somebody has to choose, because a
// budget bounds them (into PreparingUpdate, Updating and PreparingDelete, and
// out of PreparingDelete), are the planner's.
func Next(p Pod, hooks Hooks) (apps.LifecycleState, string) {
	switch p.State {
	case apps.StatePreparingNormal:
		return nextOfPreparingNormal(p, hooks.PreNormal)
	case apps.StatePreparingUpdate:
		if !p.UpdateWanted {
			return afterUpdate(p, hooks.InPlaceUpdate), ReasonUpdateDropped
		}
	case apps.StateUpdating:
		if p.UpdateDone {
			return afterUpdate(p, hooks.InPlaceUpdate), ReasonUpdateDone
		}
	case apps.StateUpdated:
		if hooks.InPlaceUpdate.Complete(p.Labels, p.Finalizers) {
			return apps.StateNormal, ReasonHookRestored
		}
	}
	return p.State, ""
}

func nextOfPreparingNormal(p Pod, hook Hook) (apps.LifecycleState, string) {
	if len(hook.Labels) == 0 && len(hook.Finalizers) == 0 {
		if p.Scheduled {
			return apps.StateNormal, ReasonScheduled
		}
		return p.State, ""
	}
	if hook.Complete(p.Labels, p.Finalizers) {
		return apps.StateNormal, ReasonPreNormalDone
	}
	return p.State, ""
}

// afterUpdate is where a Pod goes that leaves an update, done or dropped: to
// Updated while the hook has to take hold of it again.
func afterUpdate(p Pod, hook Hook) apps.LifecycleState {
	if hook.Complete(p.Labels, p.Finalizers) {
		return apps.StateNormal
	}
	return apps.StateUpdated
}

// MarksNotReady says whether a hook with markPodNotReady keeps a Pod in this
// state out of service. It is asked for every Pod in every pass, so that no way
// out of a state can forget to lift the mark.
func MarksNotReady(state apps.LifecycleState, hooks Hooks) bool {
	switch state {
	case apps.StatePreparingUpdate, apps.StateUpdating:
		return hooks.InPlaceUpdate.MarkNotReady
	case apps.StatePreparingDelete:
		return hooks.PreDelete.MarkNotReady
	}
	return false
}

// Gate names the hook that holds a Pod in this state, as spec.lifecycle spells
// it; "" if none can.
func Gate(state apps.LifecycleState) string {
	switch state {
	case apps.StatePreparingNormal:
		return "preNormal"
	case apps.StatePreparingUpdate, apps.StateUpdated:
		return "inPlaceUpdate"
	case apps.StatePreparingDelete:
		return "preDelete"
	}
	return ""
}
