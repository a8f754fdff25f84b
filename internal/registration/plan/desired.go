// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// desired is what a Registration wants of its entries of a Pod.
type desired int

const (
	// absent: no entry.
	absent desired = iota
	// present: one entry in each registry.
	present
	// unchanged: existing entries stay; nothing is written.
	unchanged
	// outOfService: existing entries stay, and get no callers.
	outOfService
)

func (ix *index) desiredOf(r *registration, p *pod) desired {
	if p.DeletionTimestamp != nil || p.requested() || !slices.Contains(p.selectedBy, r) {
		return absent
	}
	if p.unfit(r) == "" {
		return present
	}
	policy := r.Spec.OnInPlaceUpdate
	switch {
	case p.silent:
		if r.kept[p] != nil {
			return unchanged
		}
	case !p.updating():
	case policy == usherv1alpha1.InPlaceUpdateStay:
		return unchanged
	case policy == usherv1alpha1.InPlaceUpdateFailOver:
		return outOfService
	}
	return absent
}

// unfit is why the Registration does not want the Pod in its registries; empty if it does.
func (p *pod) unfit(r *registration) string { return cmp.Or(p.misplaced(r), p.unready) }

// misplaced is why no Pod in this state belongs in the Registration's registries; empty if
// it does.
func (p *pod) misplaced(r *registration) string {
	if p.requested() {
		return p.whyRequested()
	}
	switch p.state {
	case appsv1alpha1.StateNormal, appsv1alpha1.StateUpdated:
	case appsv1alpha1.StatePreparingNormal:
		if len(r.answeredKeys(r.Spec.Hooks.PreNormal, p.lifecycle.PreNormal)) == 0 {
			return "it is PreparingNormal, and the Registration answers no preNormal hook"
		}
	default:
		return "it is " + string(p.state)
	}
	return ""
}

// wanted reports whether any registry should list the Pod.
func (p *pod) wanted() bool {
	return slices.ContainsFunc(p.selectedBy, func(r *registration) bool {
		return p.unfit(r) == "" && r.operates(p)
	})
}

// updating reports whether an in-place update is under way, until the updated Pod is ready.
func (p *pod) updating() bool {
	return slices.Contains([]appsv1alpha1.LifecycleState{
		appsv1alpha1.StatePreparingUpdate, appsv1alpha1.StateUpdating, appsv1alpha1.StateUpdated}, p.state)
}

// staysFor reports whether the Pod stays in the Registration's registries at this gate.
func (r *registration) staysFor(h hook) bool {
	return h.gate == GateInPlaceUpdate && r.Spec.OnInPlaceUpdate == usherv1alpha1.InPlaceUpdateStay
}

// heldBack reports whether the Registration's entries of the Pod should stay in a target,
// out of service.
func (ix *index) heldBack(r *registration, t Target, p *pod) bool {
	return ix.Registries[t.Registry].HoldsBack && slices.Contains(r.current, t) && ix.desiredOf(r, p) == outOfService
}

// EntryID is the ID of a Pod's entries: readable, and different for another Pod of the
// same name.
func EntryID(pod *corev1.Pod) string {
	uid := strings.ReplaceAll(string(pod.UID), "-", "")
	return pod.Namespace + "." + pod.Name + "." + uid[:min(8, len(uid))]
}

// entry is what the Registration's registries should list for the Pod; its port is 0 if the Pod
// has none of that name.
func (ix *index) entry(r *registration, p *pod) registry.Entry {
	v := p.valuesFor(r)
	return registry.Entry{
		ID: p.id, Address: p.Status.PodIP, Port: portOf(p.Pod, r.Spec.Instance.Port), Weight: v.weight, Metadata: v.metadata,
		Owner: registry.Owner{
			Cluster: ix.Cluster, Namespace: p.Namespace, Registration: r.Name, Pod: p.Name, PodUID: string(p.UID),
		},
	}
}
