// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"slices"
	"testing"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

const (
	keyNormal = "example.com/registered"
	keyUpdate = "example.com/drained"
	keyDelete = "example.com/unlisted"
)

// hooks asks for one label and one finalizer at each gate.
func hooks() Hooks {
	gate := func(key string) Hook {
		return Hook{Labels: map[string]string{key: "yes"}, Finalizers: []string{key + "-f"}}
	}
	return Hooks{PreNormal: gate(keyNormal), InPlaceUpdate: gate(keyUpdate), PreDelete: gate(keyDelete)}
}

func marked() Hooks {
	h := hooks()
	h.InPlaceUpdate.MarkNotReady, h.PreDelete.MarkNotReady = true, true
	return h
}

type podOption func(*Pod)

func pod(state apps.LifecycleState, options ...podOption) Pod {
	p := Pod{State: state, Labels: map[string]string{}, Scheduled: true}
	for _, option := range options {
		option(&p)
	}
	return p
}

func unscheduled(p *Pod) { p.Scheduled = false }
func done(p *Pod)        { p.UpdateDone = true }
func wanted(p *Pod)      { p.UpdateWanted = true }

func label(key, value string) podOption {
	return func(p *Pod) { p.Labels[key] = value }
}

func finalizer(key string) podOption {
	return func(p *Pod) { p.Finalizers = append(p.Finalizers, key+"-f") }
}

// all adds everything that a gate asks for to the Pod.
func all(keys ...string) podOption {
	return func(p *Pod) {
		for _, key := range keys {
			label(key, "yes")(p)
			finalizer(key)(p)
		}
	}
}

// TestNext covers the rows of the transition table that a Pod takes by itself, and every
// wait.
func TestNext(t *testing.T) {
	for _, test := range []struct {
		name   string
		pod    Pod
		hooks  Hooks
		want   apps.LifecycleState
		reason string
	}{
		// PreparingNormal
		{"new, no hook, no node", pod(apps.StatePreparingNormal, unscheduled), Hooks{}, apps.StatePreparingNormal, ""},
		{"new, no hook, scheduled", pod(apps.StatePreparingNormal), Hooks{}, apps.StateNormal, ReasonScheduled},
		{"new, only other hooks, scheduled", pod(apps.StatePreparingNormal), Hooks{PreDelete: hooks().PreDelete}, apps.StateNormal, ReasonScheduled},
		{"new, hook, nothing set", pod(apps.StatePreparingNormal), hooks(), apps.StatePreparingNormal, ""},
		{"new, hook, only the label", pod(apps.StatePreparingNormal, label(keyNormal, "yes")), hooks(), apps.StatePreparingNormal, ""},
		{"new, hook, only the finalizer", pod(apps.StatePreparingNormal, finalizer(keyNormal)), hooks(), apps.StatePreparingNormal, ""},
		{"new, hook, another value", pod(apps.StatePreparingNormal, all(keyNormal), label(keyNormal, "no")), hooks(), apps.StatePreparingNormal, ""},
		{"new, hook, all set", pod(apps.StatePreparingNormal, all(keyNormal)), hooks(), apps.StateNormal, ReasonPreNormalDone},
		// PreparingUpdate
		{"before the update", pod(apps.StatePreparingUpdate, wanted), hooks(), apps.StatePreparingUpdate, ""},
		{"before the update, hook removed", pod(apps.StatePreparingUpdate, wanted), Hooks{}, apps.StatePreparingUpdate, ""},
		{"rolled back, hook released", pod(apps.StatePreparingUpdate, all(keyNormal)), hooks(), apps.StateUpdated, ReasonUpdateDropped},
		{"rolled back, hook half released", pod(apps.StatePreparingUpdate, all(keyNormal), finalizer(keyUpdate)), hooks(), apps.StateUpdated, ReasonUpdateDropped},
		{"rolled back, hook still holds", pod(apps.StatePreparingUpdate, all(keyNormal, keyUpdate)), hooks(), apps.StateNormal, ReasonUpdateDropped},
		{"rolled back, lifecycle removed", pod(apps.StatePreparingUpdate), Hooks{}, apps.StateNormal, ReasonUpdateDropped},
		// Updating
		{"the kubelet works", pod(apps.StateUpdating), hooks(), apps.StateUpdating, ""},
		{"the kubelet works, lifecycle removed", pod(apps.StateUpdating), Hooks{}, apps.StateUpdating, ""},
		{"updated, hook released", pod(apps.StateUpdating, done, all(keyNormal)), hooks(), apps.StateUpdated, ReasonUpdateDone},
		{"updated, hook holds", pod(apps.StateUpdating, done, all(keyNormal, keyUpdate)), hooks(), apps.StateNormal, ReasonUpdateDone},
		{"updated, no hook", pod(apps.StateUpdating, done), Hooks{}, apps.StateNormal, ReasonUpdateDone},
		// Updated
		{"hook not back", pod(apps.StateUpdated), hooks(), apps.StateUpdated, ""},
		{"hook half back", pod(apps.StateUpdated, label(keyUpdate, "yes")), hooks(), apps.StateUpdated, ""},
		{"hook back", pod(apps.StateUpdated, all(keyNormal, keyUpdate)), hooks(), apps.StateNormal, ReasonHookRestored},
		{"hook gone", pod(apps.StateUpdated), Hooks{}, apps.StateNormal, ReasonHookRestored},
		// An update does not bypass preNormal.
		{"new and updated", pod(apps.StateUpdating, done, all(keyUpdate)), hooks(), apps.StatePreparingNormal, ReasonUpdateDone},
		{"new and rolled back", pod(apps.StatePreparingUpdate, all(keyUpdate)), hooks(), apps.StatePreparingNormal, ReasonUpdateDropped},
		{"new, updated and back", pod(apps.StateUpdated, all(keyUpdate)), hooks(), apps.StatePreparingNormal, ReasonHookRestored},
		// Moves that only the planner chooses
		{"Normal stays", pod(apps.StateNormal), hooks(), apps.StateNormal, ""},
		{"no state stays", pod(""), hooks(), "", ""},
		{"PreparingDelete stays", pod(apps.StatePreparingDelete), Hooks{}, apps.StatePreparingDelete, ""},
		// A Pod can leave an unknown state.
		{"unknown", pod("Paused"), Hooks{}, apps.StateNormal, ReasonUnknownState},
		{"unknown, not registered", pod("Paused"), hooks(), apps.StatePreparingNormal, ReasonUnknownState},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, reason := Next(test.pod, test.hooks)
			if got != test.want || reason != test.reason {
				t.Errorf("Next = %q, %q; want %q, %q", got, reason, test.want, test.reason)
			}
		})
	}
}

// TestHookPredicates: one key is enough to hold, all are needed to be complete.
func TestHookPredicates(t *testing.T) {
	hook := Hook{Labels: map[string]string{"b": "1", "a": ""}, Finalizers: []string{"z", "y"}}
	for _, test := range []struct {
		name       string
		labels     map[string]string
		finalizers []string
		missing    []string
		holding    []string
	}{
		{"bare", nil, nil, []string{"a", "b", "z", "y"}, nil},
		{"other value", map[string]string{"b": "2"}, []string{"x"}, []string{"a", "b", "z", "y"}, nil},
		{"an empty value counts when it is there", map[string]string{"a": ""}, nil, []string{"b", "z", "y"}, []string{"a"}},
		{"one finalizer", nil, []string{"y"}, []string{"a", "b", "z"}, []string{"y"}},
		{"all", map[string]string{"a": "", "b": "1", "c": "3"}, []string{"x", "y", "z"}, nil, []string{"a", "b", "z", "y"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			holds, complete := hook.Holds(test.labels, test.finalizers), hook.Complete(test.labels, test.finalizers)
			if holds != (len(test.holding) > 0) || complete != (len(test.missing) == 0) {
				t.Errorf("holds: %v, complete: %v", holds, complete)
			}
			if got := hook.Missing(test.labels, test.finalizers); !slices.Equal(got, test.missing) {
				t.Errorf("Missing = %v, want %v", got, test.missing)
			}
			if got := hook.Holding(test.labels, test.finalizers); !slices.Equal(got, test.holding) {
				t.Errorf("Holding = %v, want %v", got, test.holding)
			}
		})
	}
	if (Hook{}).Holds(map[string]string{"a": "1"}, []string{"z"}) || !(Hook{}).Complete(nil, nil) || !(Hook{}).Empty() {
		t.Error("the zero Hook must hold nothing and be complete")
	}
}

// TestMarkOf: markPodNotReady marks at the two gates through which a Pod leaves service,
// and nowhere else.
func TestMarkOf(t *testing.T) {
	for state, want := range map[apps.LifecycleState]Mark{
		"": MarkLifted, apps.StateNormal: MarkLifted, apps.StatePreparingNormal: MarkLifted, apps.StateUpdated: MarkLifted,
		apps.StatePreparingUpdate: MarkSet, apps.StatePreparingDelete: MarkSet, apps.StateUpdating: MarkKept,
	} {
		if got := MarkOf(state, marked()); got != want {
			t.Errorf("MarkOf(%q) = %v, want %v", state, got, want)
		}
		if got := MarkOf(state, hooks()); got == MarkSet {
			t.Errorf("MarkOf(%q) marks without markPodNotReady", state)
		}
	}
}

// TestWaiting names what a Pod waits for at each gate.
func TestWaiting(t *testing.T) {
	both := func(key string) []string { return []string{key, key + "-f"} }
	for _, test := range []struct {
		pod  Pod
		gate string
		want []string
	}{
		{pod(apps.StatePreparingNormal), "preNormal", both(keyNormal)},
		{pod(apps.StatePreparingNormal, finalizer(keyNormal)), "preNormal", []string{keyNormal}},
		{pod(apps.StatePreparingUpdate, all(keyUpdate)), "inPlaceUpdate", both(keyUpdate)},
		{pod(apps.StatePreparingUpdate), "inPlaceUpdate", nil},
		{pod(apps.StateUpdated), "inPlaceUpdate", both(keyUpdate)},
		{pod(apps.StatePreparingDelete, label(keyDelete, "yes")), "preDelete", []string{keyDelete}},
		{pod(apps.StateNormal, all(keyDelete)), "", nil},
		{pod(apps.StateUpdating, all(keyUpdate)), "", nil},
	} {
		if got := Waiting(test.pod, hooks()); !slices.Equal(got, test.want) {
			t.Errorf("Waiting in %q = %v, want %v", test.pod.State, got, test.want)
		}
		if got := Gate(test.pod.State); got != test.gate {
			t.Errorf("Gate(%q) = %q, want %q", test.pod.State, got, test.gate)
		}
	}
}

// TestFromSpec: an absent lifecycle and absent hooks hold nothing, and a finalizer that
// is listed twice counts once.
func TestFromSpec(t *testing.T) {
	if got := FromSpec(nil); !got.PreNormal.Empty() || !got.InPlaceUpdate.Empty() || !got.PreDelete.Empty() {
		t.Errorf("FromSpec(nil) = %+v", got)
	}
	got := FromSpec(&apps.Lifecycle{PreDelete: &apps.LifecycleHook{
		LabelsHandler: map[string]string{"a": "1"}, FinalizersHandler: []string{"f", "g", "f"}, MarkPodNotReady: true,
	}})
	if !got.PreNormal.Empty() || !got.InPlaceUpdate.Empty() {
		t.Errorf("absent hooks hold: %+v", got)
	}
	if h := got.PreDelete; h.Labels["a"] != "1" || !slices.Equal(h.Finalizers, []string{"f", "g"}) || !h.MarkNotReady {
		t.Errorf("PreDelete = %+v", h)
	}
}
