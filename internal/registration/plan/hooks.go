// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// createdPending and createdDone are the values of a created hook's label.
const createdPending, createdDone = "true", "false"

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
	case appsv1alpha1.StateUpdating: // no hook holds it
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
	hooks := []*appsv1alpha1.LifecycleHook{lifecycle.PreNormal, lifecycle.InPlaceUpdate, lifecycle.PreDelete}
	if slices.ContainsFunc(hooks, func(hook *appsv1alpha1.LifecycleHook) bool { return keyIn(hook, key).used() }) {
		return ""
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

// Finding is a hook that one side names and the other does not.
type Finding struct {
	// CloneSet it is about; nil if there is none to compare with.
	CloneSet *appsv1alpha1.CloneSet
	// Reason is ReasonHookUnused, ReasonHookUnanswered or ReasonKeyNotAllowed.
	Reason string
	// Message names key, CloneSet and remedy.
	Message string
}

// gateKeys are the keys of one hook, on both sides.
type gateKeys struct {
	gate Gate
	hook *appsv1alpha1.LifecycleHook
	// named is what spec.hooks says.
	named string
}

func gatesOf(r *registration, set *appsv1alpha1.CloneSet) []gateKeys {
	lifecycle := ptr.Deref(set.Spec.Lifecycle, appsv1alpha1.Lifecycle{})
	hooks := r.Spec.Hooks
	return []gateKeys{
		{GatePreNormal, lifecycle.PreNormal, hooks.PreNormal},
		{GateInPlaceUpdate, lifecycle.InPlaceUpdate, hooks.InPlaceUpdate},
		{GatePreDelete, lifecycle.PreDelete, hooks.PreDelete},
	}
}

// findings compares the hooks that the Registration names with those that the CloneSets of its
// Pods use.
func (ix *index) findings(r *registration) []Finding {
	if r.DeletionTimestamp != nil {
		return nil
	}
	all := unused(r, r.sets)
	for _, set := range r.sets {
		all = append(all, ix.unanswered(r, set)...)
		all = append(all, ix.notAllowed(r, set)...)
	}
	return all
}

// cloneSetsOf finds the CloneSets that create Pods for the Registration, or own some.
func (ix *index) cloneSetsOf(r *registration) []*appsv1alpha1.CloneSet {
	owners := list.By(r.pods, func(p *pod) types.UID { return p.owner })
	return list.Only(ix.CloneSets, func(set *appsv1alpha1.CloneSet) bool { return owners[set.UID] != nil || r.Selects(templateLabels(set)) })
}

func templateLabels(set *appsv1alpha1.CloneSet) labels.Set {
	out := labels.Set{}
	for key, value := range set.Spec.Template.Metadata.Labels {
		out[key] = string(value)
	}
	return out
}

// unused finds the keys that the Registration names and none of the CloneSets uses.
func unused(r *registration, sets []*appsv1alpha1.CloneSet) (found []Finding) {
	if len(sets) == 0 {
		return nil
	}
	names := list.Map(sets, (*appsv1alpha1.CloneSet).GetName)
	add := func(gate Gate, key, remedy string, uses func(*appsv1alpha1.CloneSet) bool) {
		if key == "" || slices.ContainsFunc(sets, uses) {
			return
		}
		found = append(found, Finding{
			CloneSet: sets[0], Reason: ReasonHookUnused,
			Message: fmt.Sprintf("hooks.%s names %s, which CloneSet %s does not use: %s, or take it out of hooks.%s",
				gate, key, strings.Join(names, ", "), remedy, gate),
		})
	}
	for i, g := range gatesOf(r, sets[0]) {
		add(g.gate, g.named, fmt.Sprintf("add it to spec.lifecycle.%s of the CloneSet", g.gate), func(set *appsv1alpha1.CloneSet) bool {
			return keyIn(gatesOf(r, set)[i].hook, g.named).used()
		})
	}
	created := r.Spec.Hooks.Created
	add(GateCreated, created, fmt.Sprintf("add the label %s: %q to its Pod template", created, createdPending), func(set *appsv1alpha1.CloneSet) bool {
		return templateLabels(set).Has(created)
	})
	return found
}

// unanswered finds the keys of the CloneSet that no Registration of its Pods names.
func (ix *index) unanswered(r *registration, set *appsv1alpha1.CloneSet) []Finding {
	var found []Finding
	for _, g := range gatesOf(r, set) {
		for _, key := range keysOf(g.hook) {
			if ix.answeredBy(set, g.gate, key) {
				continue
			}
			found = append(found, Finding{
				CloneSet: set, Reason: ReasonHookUnanswered,
				Message: fmt.Sprintf("no Registration answers %s in spec.lifecycle.%s of CloneSet %s: its Pods wait "+
					"there unless another operator answers; name it in hooks.%s, or call it %s%s%s",
					key, g.gate, set.Name, g.gate, r.Name, usherv1alpha1.HookDomain, g.gate),
			})
		}
	}
	return found
}

func keysOf(hook *appsv1alpha1.LifecycleHook) []string {
	if hook == nil {
		return nil
	}
	return distinct(slices.AppendSeq(slices.Clone(hook.FinalizersHandler), maps.Keys(hook.LabelsHandler)))
}

func (ix *index) answeredBy(set *appsv1alpha1.CloneSet, gate Gate, key string) bool {
	return slices.ContainsFunc(ix.registrations, func(r *registration) bool {
		return r.DeletionTimestamp == nil && slices.Contains(r.sets, set) && slices.ContainsFunc(gatesOf(r, set), func(g gateKeys) bool {
			return g.gate == gate && slices.Contains(r.answeredKeys(g.named, g.hook), key)
		})
	})
}
