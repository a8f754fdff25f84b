// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
)

// Deletion says what becomes of the Pods of a CloneSet.
type Deletion string

// The kinds of deletion.
const (
	// NotDeleted: the set is not being deleted.
	NotDeleted Deletion = ""
	// LetGo: the Pods are orphaned, or the garbage collector deletes them.
	LetGo Deletion = "LetGo"
	// Drain: the Pods leave through the preDelete hook.
	Drain Deletion = "Drain"
)

// DeletionOf reads from a CloneSet what becomes of its Pods, and whether its finalizer is to hold it.
// With foregroundDeletion the garbage collector deletes the Pods at once and waits for them by itself:
// the finalizer would only delay that. If a deleted set has no finalizer, a user has removed it, or the
// set was deleted before it was observed.
func DeletionOf(set *apps.CloneSet) (how Deletion, hold bool) {
	hooked := !lifecycle.FromSpec(set.Spec.Lifecycle).PreDelete.Empty()
	has := func(finalizer string) bool { return slices.Contains(set.Finalizers, finalizer) }
	switch {
	case set.DeletionTimestamp == nil:
		return NotDeleted, hooked
	case !hooked || has(metav1.FinalizerOrphanDependents):
		return LetGo, false
	case has(metav1.FinalizerDeleteDependents):
		return Drain, false
	case has(apps.FinalizerPreDelete):
		return Drain, true
	}
	return LetGo, false
}

// planDeletion plans for a CloneSet that is being deleted: nothing is created or updated. If its Pods
// leave through the hook, they all move to that gate at once.
func (p *pass) planDeletion() {
	p.plan.EndPulls = p.Pulls.Pods
	if p.Deletion != Drain {
		return
	}
	p.openLedger()
	for _, v := range p.ended {
		p.cleanUp(v)
	}
	p.release()
	for _, v := range p.pods {
		if v.preparesDelete() {
			p.keepMark(v)
			continue
		}
		if !v.deferred && !p.ledger.start() {
			p.plan.More = true
			return
		}
		p.remove(v, ReasonSetDeleted)
	}
}

// keepMark restores the conditions of a Pod that waits at the preDelete gate.
func (p *pass) keepMark(v *podState) {
	if conditions := p.conditions(v, v.state); v.holds(p.Spec.Hooks.PreDelete) && len(conditions) > 0 {
		p.act(v, Action{Verb: Move, Reason: ReasonConditions, Conditions: conditions})
	}
}

// AllTerminating reports whether all Pods of a deleted set are terminating, so that its preDelete hook
// can hold none of them any more. A terminating Pod has passed the hook, or was deleted by somebody
// else.
func (s *Snapshot) AllTerminating() bool {
	return s.Deletion == Drain && !slices.ContainsFunc(s.PodInfos, func(f *PodInfo) bool { return !f.terminate })
}
