// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// Finding is a hook that one side names and the other does not.
type Finding struct {
	// CloneSet it is about; nil if there is none to compare with.
	CloneSet *appsv1alpha1.CloneSet
	// Reason is ReasonHookUnused or ReasonHookUnanswered.
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
	}
	return all
}

// cloneSetsOf finds the CloneSets that create Pods for the Registration, or own some.
func (ix *index) cloneSetsOf(r *registration) []*appsv1alpha1.CloneSet {
	owners := map[types.UID]bool{}
	for _, p := range r.pods {
		owners[p.owner] = true
	}
	return list.Only(ix.CloneSets, func(set *appsv1alpha1.CloneSet) bool { return owners[set.UID] || r.Selects(templateLabels(set)) })
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
