// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"slices"

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
		gate, h := pending(s, m.registration.Spec.Hooks)
		if !h.used() {
			continue
		}
		at := slices.IndexFunc(hooks, func(other hook) bool { return other.hold.key == h.key })
		if at < 0 {
			hooks = append(hooks, hook{gate: gate, hold: h})
			at = len(hooks) - 1
		}
		hooks[at].members = append(hooks[at].members, m)
	}
	slices.SortFunc(hooks, func(a, b hook) int { return compareStrings(a.hold.key, b.hold.key) })
	return hooks
}

// pending finds the hook of one Registration that waits for an answer now.
func pending(s *subject, keys usherv1alpha1.Hooks) (Gate, hold) {
	if s.pod.DeletionTimestamp != nil {
		return GateDeletion, hold{}
	}
	switch s.state {
	case appsv1alpha1.StatePreparingNormal:
		return GatePreNormal, unless(holdOf(s.lifecycle.PreNormal, keys.PreNormal), hold.complete, s.pod)
	case appsv1alpha1.StateNormal:
		created := hold{key: keys.Created, label: keys.Created != "", value: createdDone}
		if created.used() && s.pod.Labels[keys.Created] != createdHolds {
			created = hold{}
		}
		return GateCreated, created
	case appsv1alpha1.StateUpdated:
		return GateUpdated, unless(holdOf(s.lifecycle.InPlaceUpdate, keys.InPlaceUpdate), hold.complete, s.pod)
	case appsv1alpha1.StatePreparingUpdate:
		return GateInPlaceUpdate, unless(holdOf(s.lifecycle.InPlaceUpdate, keys.InPlaceUpdate), hold.free, s.pod)
	case appsv1alpha1.StatePreparingDelete:
		return GatePreDelete, unless(holdOf(s.lifecycle.PreDelete, keys.PreDelete), hold.free, s.pod)
	}
	return "", hold{}
}

func (h hold) free(pod *corev1.Pod) bool { return !h.holds(pod) }

func unless(h hold, done func(hold, *corev1.Pod) bool, pod *corev1.Pod) hold {
	if !h.used() || done(h, pod) {
		return hold{}
	}
	return h
}

// hookFinalizers are the finalizers on the Pod that the Registration's hooks
// name. When somebody deletes the Pod past its CloneSet they must not hold it.
func hookFinalizers(pod *corev1.Pod, keys usherv1alpha1.Hooks) []string {
	var found []string
	for _, key := range []string{keys.PreNormal, keys.InPlaceUpdate, keys.PreDelete} {
		if key != "" && slices.Contains(pod.Finalizers, key) && !slices.Contains(found, key) {
			found = append(found, key)
		}
	}
	return found
}
