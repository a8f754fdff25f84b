// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
)

// Deletion is how a CloneSet parts with its Pods.
type Deletion string

// How a CloneSet parts with its Pods.
const (
	// NotDeleted: it keeps them.
	NotDeleted Deletion = ""
	// LetGo: they are orphaned, or the garbage collector deletes them.
	LetGo Deletion = "LetGo"
	// Drain: they leave through the preDelete hook.
	Drain Deletion = "Drain"
)

// DeletionOf reads from a CloneSet how it parts with its Pods, and whether its finalizer is
// to hold it. With foregroundDeletion the garbage collector deletes the Pods at once and
// waits for them by itself: the finalizer would only delay the end. A set without its
// finalizer was let go by a user, or deleted before it was observed.
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

// depart plans for a CloneSet that is being deleted: nothing is created or updated. If its
// Pods leave through the hook, they all go to that gate at once.
func (p *pass) depart() {
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

// Departed reports whether a deleted set has no Pod left that its preDelete hook could
// hold. A terminating Pod has passed the hook, or was deleted by someone else.
func (s *Snapshot) Departed() bool {
	return s.Deletion == Drain && !slices.ContainsFunc(s.PodInfos, func(f *PodInfo) bool { return !f.terminate })
}
