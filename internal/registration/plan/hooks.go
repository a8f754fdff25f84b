// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// createdHolds and createdDone are the values of a created hook's label.
const (
	createdHolds = "true"
	createdDone  = "false"
)

// hold is how a CloneSet's hook uses a key: as a label, a finalizer or both.
type hold struct {
	key       string
	label     bool
	value     string
	finalizer bool
}

// holdOf finds the key in a hook. The zero hold says that it is not there.
func holdOf(hook *appsv1alpha1.LifecycleHook, key string) hold {
	if hook == nil || key == "" {
		return hold{}
	}
	value, label := hook.LabelsHandler[key]
	finalizer := slices.Contains(hook.FinalizersHandler, key)
	if !label && !finalizer {
		return hold{}
	}
	return hold{key: key, label: label, value: value, finalizer: finalizer}
}

func (h hold) used() bool { return h.key != "" }

// holds says whether the key holds the Pod at a gate that it has to leave.
func (h hold) holds(pod *corev1.Pod) bool {
	return h.label && h.labelHolds(pod) || h.finalizer && slices.Contains(pod.Finalizers, h.key)
}

// complete says whether nothing of the hook is missing on the Pod.
func (h hold) complete(pod *corev1.Pod) bool {
	return (!h.label || h.labelHolds(pod)) && (!h.finalizer || slices.Contains(pod.Finalizers, h.key))
}

func (h hold) labelHolds(pod *corev1.Pod) bool {
	value, ok := pod.Labels[h.key]
	return ok && value == h.value
}

// release adds to the patch what lets the Pod go.
func (h hold) release(patch *PodPatch) {
	if h.label {
		switch h.value {
		case "true":
			patch.setLabel(h.key, "false")
		case "false":
			patch.setLabel(h.key, "true")
		default:
			patch.removeLabel(h.key)
		}
	}
	if h.finalizer {
		patch.RemoveFinalizers = append(patch.RemoveFinalizers, h.key)
	}
}

// set adds to the patch what makes the hook complete.
func (h hold) set(patch *PodPatch) {
	if h.label {
		patch.setLabel(h.key, h.value)
	}
	if h.finalizer {
		patch.AddFinalizers = append(patch.AddFinalizers, h.key)
	}
}

// hook is one key that the Pod's present state asks about, with the
// Registrations that answer it: all of them have to agree.
type hook struct {
	gate    Gate
	hold    hold
	members []*member
}

// leaving says whether the gate opens when the Pod is out of its registries,
// rather than in.
func (h hook) leaving() bool {
	return h.gate == GateInPlaceUpdate || h.gate == GatePreDelete
}

// hooksAt returns the hooks that the Pod's state asks about, sorted by key.
func hooksAt(s *subject) []hook {
	var hooks []hook
	for _, m := range s.members {
		gate, holds := pending(s, m)
		for _, h := range holds {
			at := slices.IndexFunc(hooks, func(other hook) bool { return other.hold.key == h.key })
			if at < 0 {
				hooks = append(hooks, hook{gate: gate, hold: h})
				at = len(hooks) - 1
			}
			hooks[at].members = append(hooks[at].members, m)
		}
	}
	slices.SortFunc(hooks, func(a, b hook) int { return compareStrings(a.hold.key, b.hold.key) })
	return hooks
}

// pending finds the hooks of one Registration that wait for an answer now.
func pending(s *subject, m *member) (Gate, []hold) {
	if s.pod.DeletionTimestamp != nil {
		return GateDeletion, nil
	}
	keys := m.registration.Spec.Hooks
	switch s.state {
	case appsv1alpha1.StatePreparingNormal:
		return GatePreNormal, m.holds(keys.PreNormal, s.lifecycle.PreNormal, hold.complete, s.pod)
	case appsv1alpha1.StateNormal:
		key := m.createdKey(s.lifecycle)
		if key == "" || s.pod.Labels[key] != createdHolds {
			return GateCreated, nil
		}
		return GateCreated, []hold{{key: key, label: true, value: createdDone}}
	case appsv1alpha1.StateUpdated:
		return GateUpdated, m.holds(keys.InPlaceUpdate, s.lifecycle.InPlaceUpdate, hold.complete, s.pod)
	case appsv1alpha1.StatePreparingUpdate:
		return GateInPlaceUpdate, m.holds(keys.InPlaceUpdate, s.lifecycle.InPlaceUpdate, hold.free, s.pod)
	case appsv1alpha1.StatePreparingDelete:
		return GatePreDelete, m.holds(keys.PreDelete, s.lifecycle.PreDelete, hold.free, s.pod)
	}
	return "", nil
}

func (h hold) free(pod *corev1.Pod) bool { return !h.holds(pod) }

// holds are the keys of a CloneSet's hook that the member answers and that are
// not done.
func (m *member) holds(named string, hook *appsv1alpha1.LifecycleHook, done func(hold, *corev1.Pod) bool, pod *corev1.Pod) []hold {
	var holds []hold
	for _, key := range m.answers(named, hook) {
		if h := holdOf(hook, key); h.used() && !done(h, pod) {
			holds = append(holds, h)
		}
	}
	return holds
}

// answers are the keys that the member answers at a gate: the one that spec.hooks
// names, else those of the CloneSet's hook that are named after it, sorted.
func (m *member) answers(named string, hook *appsv1alpha1.LifecycleHook) []string {
	if named != "" {
		return []string{named}
	}
	return slices.DeleteFunc(keysOf(hook), func(key string) bool { return !m.namesake(key) })
}

// namesake says whether a key is named after the member.
func (m *member) namesake(key string) bool {
	return strings.HasPrefix(key, m.name+usherv1alpha1.HookDomain)
}

// createdKey is the label of the member's created hook; empty if a hook of the
// CloneSet uses it, which a label that stays "false" would release.
func (m *member) createdKey(lifecycle appsv1alpha1.Lifecycle) string {
	if named := m.registration.Spec.Hooks.Created; named != "" {
		return named
	}
	key := m.name + usherv1alpha1.HookDomain + usherv1alpha1.HookCreated
	for _, hook := range []*appsv1alpha1.LifecycleHook{lifecycle.PreNormal, lifecycle.InPlaceUpdate, lifecycle.PreDelete} {
		if holdOf(hook, key).used() {
			return ""
		}
	}
	return key
}

// hookFinalizers are the finalizers on the Pod that are hooks of the member. When
// somebody deletes the Pod past its CloneSet they must not hold it.
func (m *member) hookFinalizers(pod *corev1.Pod) []string {
	keys := m.registration.Spec.Hooks
	named := []string{keys.PreNormal, keys.InPlaceUpdate, keys.PreDelete}
	var found []string
	for _, name := range pod.Finalizers {
		if slices.Contains(named, name) || slices.Contains(named, "") && m.namesake(name) {
			found = append(found, name)
		}
	}
	return found
}
