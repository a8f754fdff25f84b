// SPDX-License-Identifier: Apache-2.0

package lifecycle

import apps "github.com/usher-dev/usher/api/apps/v1alpha1"

// Reasons of a transition.
const (
	// ReasonScheduled: no preNormal hook, and the Pod has a node.
	ReasonScheduled = "Scheduled"
	// ReasonPreNormalDone: the Pod has every label and finalizer of the preNormal hook.
	ReasonPreNormalDone = "PreNormalDone"
	// ReasonUpdateDone: the kubelet runs what the in-place update asked for.
	ReasonUpdateDone = "UpdateDone"
	// ReasonUpdateDropped: the Pod is no longer to be updated, so it returns.
	ReasonUpdateDropped = "UpdateDropped"
	// ReasonHookRestored: the inPlaceUpdate hook holds the Pod again, or is gone.
	ReasonHookRestored = "HookRestored"
	// ReasonUnknownState: the Pod was in an unknown state.
	ReasonUnknownState = "UnknownState"
)

// Pod holds the properties of a Pod that the state machine reads.
type Pod struct {
	// State is the Pod's state; "" counts as Normal.
	State apps.LifecycleState
	// Labels and Finalizers of the Pod.
	Labels     map[string]string
	Finalizers []string
	// Scheduled means that the Pod has a node.
	Scheduled bool
	// UpdateDone means that the kubelet runs what the in-place update asked for.
	UpdateDone bool
	// UpdateWanted means that the Pod is to be updated, but its update is not under way
	// yet.
	UpdateWanted bool
}

// Next returns the state that the Pod moves to by itself, and why; if it stays, the same
// state and no reason. The planner decides the moves that a budget bounds: into
// PreparingUpdate, Updating and PreparingDelete, and out of PreparingDelete.
func Next(p Pod, hooks Hooks) (apps.LifecycleState, string) {
	switch p.State {
	case apps.StateNormal, apps.StatePreparingDelete, "":
	case apps.StatePreparingNormal:
		return nextOfPreparingNormal(p, hooks.PreNormal)
	case apps.StatePreparingUpdate:
		if !p.UpdateWanted {
			return AfterUpdate(p, hooks), ReasonUpdateDropped
		}
	case apps.StateUpdating:
		if p.UpdateDone {
			return AfterUpdate(p, hooks), ReasonUpdateDone
		}
	case apps.StateUpdated:
		if hooks.InPlaceUpdate.Complete(p.Labels, p.Finalizers) {
			return intoService(p, hooks), ReasonHookRestored
		}
	default:
		return intoService(p, hooks), ReasonUnknownState
	}
	return p.State, ""
}

func nextOfPreparingNormal(p Pod, hook Hook) (apps.LifecycleState, string) {
	switch {
	case hook.Empty() && p.Scheduled:
		return apps.StateNormal, ReasonScheduled
	case !hook.Empty() && hook.Complete(p.Labels, p.Finalizers):
		return apps.StateNormal, ReasonPreNormalDone
	}
	return p.State, ""
}

// AfterUpdate returns the state that follows an update, done or dropped: Updated while the
// inPlaceUpdate hook has to take hold of the Pod again.
func AfterUpdate(p Pod, hooks Hooks) apps.LifecycleState {
	if hooks.InPlaceUpdate.Complete(p.Labels, p.Finalizers) {
		return intoService(p, hooks)
	}
	return apps.StateUpdated
}

// intoService returns Normal, unless the Pod has never passed preNormal, or lost the keys that it got
// there: an update of a new Pod must not bypass that gate.
func intoService(p Pod, hooks Hooks) apps.LifecycleState {
	if hooks.PreNormal.Complete(p.Labels, p.Finalizers) {
		return apps.StateNormal
	}
	return apps.StatePreparingNormal
}

// MarkOf reports whether a hook with markPodNotReady marks a Pod in a state as not ready, or
// whether a mark that the Pod has is to be lifted. It is evaluated for every Pod in every
// pass, so that no way out of a state can forget to remove the mark.
func MarkOf(state apps.LifecycleState, hooks Hooks) (set, lift bool) {
	_, hook, joins := hooks.At(state)
	set = hook.MarkPodNotReady && !joins
	// An update itself keeps the Pod out of service: an existing mark stays until the update
	// ends, and a new one would be a wasted write.
	return set, !set && state != apps.StateUpdating
}

// Waiting returns the gate at which a Pod is, and lists, in order, the keys of its hook that
// keep the Pod there: those that must be added, or those that must be removed.
func Waiting(p Pod, hooks Hooks) (gate string, keys []string) {
	gate, hook, joins := hooks.At(p.State)
	if joins {
		return gate, hook.Missing(p.Labels, p.Finalizers)
	}
	return gate, hook.Holding(p.Labels, p.Finalizers)
}
