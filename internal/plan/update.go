// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/inplace"
	"github.com/usher-dev/usher/internal/revision"
)

// updatable says whether an old Pod can get to the update revision by the
// method that the user chose; if it cannot, it says why and leaves the Pod be.
func (p *pass) updatable(v *podView) bool {
	if p.Spec.Method == Recreate {
		return true
	}
	_, err := p.change(v)
	var refusal *inplace.Refusal
	switch {
	case err == nil:
		return true
	case errors.Is(err, errUnreadable):
		p.problem(ProblemRevision, fmt.Sprintf(
			"ControllerRevision %s cannot be read, so Pod %s stays as it is: delete the Pod to have it made anew", v.revision, v.pod.Name))
		return false
	case p.Spec.Method == InPlaceIfPossible:
		return true
	case errors.As(err, &refusal):
		p.problem(ProblemNotInPlace, fmt.Sprintf(
			"updateStrategy.type is InPlaceOnly, but %v: undo that change, or set the type to InPlaceIfPossible", refusal))
	default:
		p.problem(ProblemNotInPlace, fmt.Sprintf(
			"updateStrategy.type is InPlaceOnly, but the ControllerRevision %s of Pod %s is gone: delete the Pod to have it made anew", v.revision, v.pod.Name))
	}
	return false
}

// problem notes a problem once.
func (p *pass) problem(reason, message string) {
	for _, known := range p.plan.Problems {
		if known.Reason == reason {
			return
		}
	}
	p.plan.Problems = append(p.plan.Problems, Problem{Reason: reason, Message: message})
}

var (
	errUnreadable = errors.New("revision cannot be read")
	errGone       = errors.New("revision is gone")
)

// change is how the Pod gets to the update revision in place.
func (p *pass) change(v *podView) (*inplace.Change, error) {
	hash := revision.Short(v.revision)
	if known, ok := p.changes[hash]; ok {
		return known.change, known.err
	}
	var found diff
	switch from := p.Revisions[hash]; {
	case from == nil:
		found.err = errGone
	case from.Template == nil:
		found.err = errUnreadable
	default:
		found.change, found.err = inplace.Diff(from.Template, p.Update.Template)
	}
	p.changes[hash] = found
	return found.change, found.err
}

type diff struct {
	change *inplace.Change
	err    error
}

// update leads the chosen Pods to the update revision, as far as the budget
// goes. Those whose update has begun come first.
func (p *pass) update() {
	if p.Spec.Paused {
		return
	}
	for _, v := range p.queue {
		if v.acted || v.state == apps.StatePreparingDelete {
			continue
		}
		change, err := p.change(v)
		if p.Spec.Method == Recreate || err != nil {
			p.recreate(v)
		} else {
			p.updateInPlace(v, change)
		}
	}
}

func (p *pass) recreate(v *podView) {
	if !p.ledger.takeDown(v) {
		p.plan.More = p.plan.More || p.ledger.starts == 0
		return
	}
	p.remove(v, ReasonRecreate)
}

func (p *pass) updateInPlace(v *podView, change *inplace.Change) {
	hook := p.Spec.Hooks.InPlaceUpdate
	gated := v.holds(hook) || v.state == apps.StateUpdated
	switch {
	case v.state == apps.StatePreparingUpdate && v.holds(hook): // waits, as refresh has noted
	case v.state != apps.StatePreparingUpdate && v.state != apps.StateUpdating && gated:
		p.prepareUpdate(v)
	case change.Restarts():
		p.restart(v, change)
	case !p.ledger.start():
		p.plan.More = true
	default:
		// No container restarts: nobody has to leave service for it.
		p.act(v, Action{
			Verb: Update, Reason: ReasonInPlace, To: p.afterMetadata(v), Revision: p.Update, Change: change,
			Conditions: p.conditions(v, apps.StateNormal),
		})
	}
}

// afterMetadata is the state after a change that takes effect at once.
func (p *pass) afterMetadata(v *podView) apps.LifecycleState {
	if v.state == apps.StateNormal || v.state == apps.StatePreparingNormal {
		return ""
	}
	if p.Spec.Hooks.InPlaceUpdate.Complete(v.pod.Labels, v.pod.Finalizers) {
		return apps.StateNormal
	}
	return apps.StateUpdated
}

// prepareUpdate leads a Pod to the gate before its update. A Pod that comes
// from an update which its hook has not closed yet gets the hook's labels and
// finalizers back with the state, else the gate would stand open.
func (p *pass) prepareUpdate(v *podView) {
	if !p.ledger.takeDown(v) {
		p.plan.More = p.plan.More || p.ledger.starts == 0
		return
	}
	hook := p.Spec.Hooks.InPlaceUpdate
	a := Action{Verb: Move, Reason: ReasonPrepareUpdate, To: apps.StatePreparingUpdate}
	if v.state == apps.StateUpdated {
		a.Labels = map[string]*string{}
		for key, value := range hook.Labels {
			a.Labels[key] = &value
		}
		a.AddFinalizers = hook.Finalizers
	}
	a.Conditions = p.conditions(v, apps.StatePreparingUpdate)
	p.act(v, a)
}

// restart takes the Pod out of its endpoints, waits for the grace period, and
// then changes its containers.
func (p *pass) restart(v *podView, change *inplace.Change) {
	at, begun := v.graceOver(p.Update.Name, p.Spec.Grace)
	if begun && p.Now.Before(at) {
		p.wakeAt(at)
		return
	}
	if !p.ledger.takeDown(v) {
		p.plan.More = p.plan.More || p.ledger.starts == 0
		return
	}
	var conditions []Condition
	if !begun && v.state != apps.StateUpdating {
		conditions = []Condition{{
			Type: apps.ConditionInPlaceUpdateReady, Status: corev1.ConditionFalse,
			Reason: ReasonStartInPlace, Message: p.Update.Name,
		}}
	}
	if len(conditions) > 0 && p.Spec.Grace > 0 {
		p.wakeAt(p.Now.Add(p.Spec.Grace))
		p.act(v, Action{Verb: Move, Reason: ReasonStartInPlace, Conditions: conditions})
		return
	}
	p.act(v, Action{
		Verb: Update, Reason: ReasonInPlace, To: apps.StateUpdating, Revision: p.Update, Change: change, Conditions: conditions,
	})
}
