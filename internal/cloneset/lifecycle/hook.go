// SPDX-License-Identifier: Apache-2.0

// Package lifecycle is the state machine of a CloneSet's Pod: which gates it passes, what
// holds it there, and which state comes next. It is pure: it reads labels, finalizers and
// a few more properties, and decides; others write.
package lifecycle

import (
	"maps"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// Hook is a set of labels and finalizers with which someone outside holds a Pod at a
// gate. The zero Hook holds nothing.
type Hook apps.LifecycleHook

// Hooks are the hooks of a CloneSet.
type Hooks struct {
	PreNormal, InPlaceUpdate, PreDelete Hook
}

// All lists the hooks in the order of a Pod's life.
func (h Hooks) All() []Hook { return []Hook{h.PreNormal, h.InPlaceUpdate, h.PreDelete} }

// At returns the gate at which a Pod in this state is, as spec.lifecycle spells it, and its hook; "" if
// none can hold the Pod. At a gate through which it joins, a Pod waits until it has all keys of the
// hook; at another gate, until it has none of them.
func (h Hooks) At(state apps.LifecycleState) (gate string, hook Hook, joins bool) {
	switch state {
	case apps.StatePreparingNormal:
		return "preNormal", h.PreNormal, true
	case apps.StatePreparingUpdate:
		return "inPlaceUpdate", h.InPlaceUpdate, false
	case apps.StateUpdated:
		return "inPlaceUpdate", h.InPlaceUpdate, true
	case apps.StatePreparingDelete:
		return "preDelete", h.PreDelete, false
	case apps.StateNormal, apps.StateUpdating: // no hook holds it
	}
	return "", Hook{}, false
}

// FromSpec reads the hooks of a CloneSet; nil means no hooks.
func FromSpec(spec *apps.Lifecycle) Hooks {
	in := ptr.Deref(spec, apps.Lifecycle{})
	hook := func(in *apps.LifecycleHook) Hook { return Hook(ptr.Deref(in, apps.LifecycleHook{})) }
	return Hooks{PreNormal: hook(in.PreNormal), InPlaceUpdate: hook(in.InPlaceUpdate), PreDelete: hook(in.PreDelete)}
}

// Holds reports whether at least one label or finalizer of the hook is on the Pod.
func (h Hook) Holds(labels map[string]string, finalizers []string) bool {
	return len(h.Holding(labels, finalizers)) > 0
}

// Complete reports whether every label and finalizer of the hook is on the Pod. A hook
// that names none is complete.
func (h Hook) Complete(labels map[string]string, finalizers []string) bool {
	return len(h.Missing(labels, finalizers)) == 0
}

// Confirm adds the hook's labels and finalizers to a Pod, as a hook operator does when the Pod may
// join.
func (h Hook) Confirm(pod metav1.Object) {
	labels := map[string]string{}
	maps.Copy(labels, pod.GetLabels())
	maps.Copy(labels, h.LabelsHandler)
	pod.SetLabels(labels)
	for _, f := range h.FinalizersHandler {
		if !slices.Contains(pod.GetFinalizers(), f) {
			pod.SetFinalizers(append(pod.GetFinalizers(), f))
		}
	}
}

// Release removes the hook's labels and finalizers from a Pod, as a hook operator does when the Pod may
// leave.
func (h Hook) Release(pod metav1.Object) {
	labels := pod.GetLabels()
	for key, value := range h.LabelsHandler {
		if got, ok := labels[key]; ok && got == value {
			labels[key] = strconv.FormatBool(value == "false")
		}
	}
	pod.SetFinalizers(slices.DeleteFunc(pod.GetFinalizers(), func(f string) bool { return slices.Contains(h.FinalizersHandler, f) }))
}

// Empty reports whether the hook names neither a label nor a finalizer.
func (h Hook) Empty() bool { return len(h.LabelsHandler) == 0 && len(h.FinalizersHandler) == 0 }

// Holding lists the keys of the hook that are on the Pod, in order.
func (h Hook) Holding(labels map[string]string, finalizers []string) []string {
	return h.keys(labels, finalizers, true)
}

// Missing lists the keys of the hook that are not on the Pod, in order.
func (h Hook) Missing(labels map[string]string, finalizers []string) []string {
	return h.keys(labels, finalizers, false)
}

func (h Hook) keys(labels map[string]string, finalizers []string, present bool) []string {
	var out []string
	for key, want := range h.LabelsHandler {
		if got, ok := labels[key]; (ok && got == want) == present {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	for i, finalizer := range h.FinalizersHandler {
		first := slices.Index(h.FinalizersHandler, finalizer) == i // the API accepts duplicates
		if first && slices.Contains(finalizers, finalizer) == present {
			out = append(out, finalizer)
		}
	}
	return out
}
