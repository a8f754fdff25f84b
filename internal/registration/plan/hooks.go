// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// createdPending and createdDone are the values of a created hook's label.
const (
	createdPending = "true"
	createdDone    = "false"
)

// hookKey is how a CloneSet's hook uses a key: as a label, a finalizer or both.
type hookKey struct {
	name      string
	label     bool
	value     string
	finalizer bool
}

// keyIn is how the hook uses the key, if it does.
func keyIn(hook *appsv1alpha1.LifecycleHook, name string) hookKey {
	if hook == nil || name == "" {
		return hookKey{}
	}
	value, label := hook.LabelsHandler[name]
	return hookKey{name: name, label: label, value: value, finalizer: slices.Contains(hook.FinalizersHandler, name)}
}

func (k hookKey) used() bool { return k.label || k.finalizer }

// is reports whether the Pod has all that the hook asks for, or nothing of it.
func (k hookKey) is(on bool, pod *corev1.Pod) bool {
	value, labelled := pod.Labels[k.name]
	return (!k.label || (labelled && value == k.value) == on) && (!k.finalizer || slices.Contains(pod.Finalizers, k.name) == on)
}

// release adds to the patch what lets the Pod go.
func (k hookKey) release(patch *PodPatch) {
	if k.label {
		// A value that is neither is removed.
		opposite := map[string]*string{"true": new("false"), "false": new("true")}
		patch.setLabel(k.name, opposite[k.value])
	}
	if k.finalizer {
		patch.RemoveFinalizers = append(patch.RemoveFinalizers, k.name)
	}
}

// set adds to the patch what makes the hook complete.
func (k hookKey) set(patch *PodPatch) {
	if k.label {
		patch.setLabel(k.name, &k.value)
	}
	if k.finalizer {
		patch.AddFinalizers = append(patch.AddFinalizers, k.name)
	}
}

// hook is one key that waits for Usher in the Pod's present state, with the Registrations
// that answer it: all of them have to agree.
type hook struct {
	gate      Gate
	key       hookKey
	answerers []*registration
}

// leaving reports whether the gate opens when the Pod is out of its registries, rather than
// in.
func (h hook) leaving() bool { return h.gate.leaves() }

// hooksAt returns the hooks that wait for Usher in the Pod's state, sorted by key.
func hooksAt(p *pod) []hook {
	var hooks []hook
	for _, r := range p.selectedBy {
		gate, keys := pending(p, r)
		for _, key := range keys {
			at := slices.IndexFunc(hooks, func(other hook) bool { return other.key.name == key.name })
			if at < 0 {
				hooks = append(hooks, hook{gate: gate, key: key})
				at = len(hooks) - 1
			}
			hooks[at].answerers = append(hooks[at].answerers, r)
		}
	}
	hooks = append(hooks, p.ownHook()...)
	slices.SortFunc(hooks, func(a, b hook) int { return strings.Compare(a.key.name, b.key.name) })
	return hooks
}

// pending finds the keys that wait for the Registration now.
func pending(p *pod, r *registration) (Gate, []hookKey) {
	if p.DeletionTimestamp != nil {
		return GateDeletion, nil
	}
	keys := r.Spec.Hooks
	switch p.state {
	case appsv1alpha1.StatePreparingNormal:
		return r.unanswered(GatePreNormal, keys.PreNormal, p.lifecycle.PreNormal, p.Pod)
	case appsv1alpha1.StateNormal:
		key := r.createdKey(p.lifecycle)
		if key == "" || p.Labels[key] != createdPending {
			return GateCreated, nil
		}
		return GateCreated, []hookKey{{name: key, label: true, value: createdDone}}
	case appsv1alpha1.StateUpdated:
		return r.unanswered(GateUpdated, keys.InPlaceUpdate, p.lifecycle.InPlaceUpdate, p.Pod)
	case appsv1alpha1.StatePreparingUpdate:
		return r.unanswered(GateInPlaceUpdate, keys.InPlaceUpdate, p.lifecycle.InPlaceUpdate, p.Pod)
	case appsv1alpha1.StatePreparingDelete:
		return r.unanswered(GatePreDelete, keys.PreDelete, p.lifecycle.PreDelete, p.Pod)
	}
	return "", nil
}

// unanswered returns the keys of a CloneSet's hook that the Registration answers and has not
// answered yet: the Pod comes in with all that the hook asks for, and leaves without it.
func (r *registration) unanswered(gate Gate, named string, hook *appsv1alpha1.LifecycleHook, pod *corev1.Pod) (_ Gate, keys []hookKey) {
	for _, name := range r.answeredKeys(named, hook) {
		if key := keyIn(hook, name); key.used() && !key.is(!gate.leaves(), pod) {
			keys = append(keys, key)
		}
	}
	return gate, keys
}

// answeredKeys are the keys that the Registration answers at a gate, sorted: the one in
// spec.hooks, otherwise those of the CloneSet's hook that have the Registration's name.
func (r *registration) answeredKeys(named string, hook *appsv1alpha1.LifecycleHook) []string {
	if named != "" {
		return []string{named}
	}
	return slices.DeleteFunc(keysOf(hook), func(key string) bool { return !r.hasName(key) })
}

// hasName reports whether the key begins with the Registration's name.
func (r *registration) hasName(key string) bool {
	return strings.HasPrefix(key, r.Name+usherv1alpha1.HookDomain)
}

// createdKey is the label of the Registration's created hook. It is empty if a hook of the
// CloneSet uses the label, because a label that stays "false" would release that hook.
func (r *registration) createdKey(lifecycle appsv1alpha1.Lifecycle) string {
	if named := r.Spec.Hooks.Created; named != "" {
		return named
	}
	key := r.Name + usherv1alpha1.HookDomain + usherv1alpha1.HookCreated
	for _, hook := range []*appsv1alpha1.LifecycleHook{lifecycle.PreNormal, lifecycle.InPlaceUpdate, lifecycle.PreDelete} {
		if keyIn(hook, key).used() {
			return ""
		}
	}
	return key
}

// hookFinalizers are the finalizers on the Pod that are hooks of the Registration. They
// must not hold a Pod that somebody deletes without its CloneSet.
func (r *registration) hookFinalizers(pod *corev1.Pod) []string {
	keys := r.Spec.Hooks
	named := []string{keys.PreNormal, keys.InPlaceUpdate, keys.PreDelete}
	return list.Only(pod.Finalizers, func(name string) bool {
		return slices.Contains(named, name) || slices.Contains(named, "") && r.hasName(name)
	})
}
