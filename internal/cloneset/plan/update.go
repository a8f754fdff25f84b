// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/list"
)

// update leads the chosen Pods to the update revision, as far as the budget allows. Pods whose update
// has begun come first.
func (p *pass) update() {
	for _, v := range p.queue {
		if v.fixed || v.moved || v.removed || !v.chosen {
			continue
		}
		change, err := p.change(v)
		if p.Spec.Method == apps.UpdateReCreate || err != nil {
			p.recreate(v, err)
		} else {
			p.updateInPlace(v, change)
		}
	}
}

// recreate replaces a Pod that is not updated in place; err says why that is impossible.
func (p *pass) recreate(v *podState, err error) {
	switch {
	case p.ClaimsRefused != "":
	case !p.replacing.roomToRecreate(v, &p.ledger):
		p.plan.More = true // after the Pods that are named for deletion
	case p.takeDown(v):
		p.removeBecause(v, ReasonRecreate, cmp.Or(v.leavesNode, v.unknownRevision(err)))
		if v.leaving && p.replacing != nil {
			p.replacing.taken++
		}
	}
}

// unknownRevision explains why a Pod of an unknown revision is recreated: somebody has changed its
// labels. It returns "" for other Pods.
func (p *podState) unknownRevision(err error) string {
	switch {
	case !errors.Is(err, errGone):
		return ""
	case p.revision == "":
		return fmt.Sprintf("its labels %s and %s are gone, so nobody knows its revision", apps.LabelRevision, apps.LabelTemplateHash)
	}
	return fmt.Sprintf("its labels say revision %s, which does not exist", p.revision)
}

// takeDown pays for the update of a Pod. An update is at least two writes, and so costs two
// starts: finished Pods come back in the next pass, which must not be far.
func (p *pass) takeDown(v *podState) bool {
	if p.Starts > 0 && !v.deferred && p.begun >= max(p.Starts/2, 1) {
		p.plan.More = true
		return false
	}
	if p.ledger.takeDown(v, p.ledger.roomForUpdate()) {
		p.begun += one(!v.deferred)
		return true
	}
	p.plan.More = p.plan.More || p.outOfStarts()
	return false
}

func (p *pass) updateInPlace(v *podState, change *inplace.Change) {
	switch {
	case p.gated(v):
		if v.state != apps.StatePreparingUpdate {
			p.prepareUpdate(v, change)
		} else { // it waits at the gate, as refresh has recorded, unless the update is refused
			p.tried(v, change)
		}
	case p.restarts(v, change):
		p.restart(v, change)
	case change.Drains() && !p.takeDown(v):
	case !change.Drains() && !p.ledger.start():
		p.plan.More = true
	default:
		p.relabel(v, change)
	}
}

// restarts reports whether the update changes containers of a Pod that has a node. New resources that
// need a write of their own count without a node too: the state Updating shows that this write is due.
func (p *pass) restarts(v *podState, change *inplace.Change) bool {
	return v.more() || change.Drains() && v.scheduled || len(change.Resources) > 0
}

// gated reports whether the Pod must pass the inPlaceUpdate hook first.
func (p *pass) gated(v *podState) bool {
	return v.state == apps.StateUpdated || (v.state != apps.StateUpdating && v.holds(p.Spec.Hooks.InPlaceUpdate))
}

// relabel changes a Pod without restarting a container: its metadata only, or a Pod that has no kubelet
// yet. So no Pod leaves service. A restart that an earlier revision asked for continues.
func (p *pass) relabel(v *podState, change *inplace.Change) {
	if !v.available {
		p.ledger.hold(v) // one more of the update revision that does not serve
	}
	next := v.state
	if next == apps.StatePreparingUpdate {
		next = lifecycle.AfterUpdate(v.lifecycle(), p.Spec.Hooks)
	}
	a := Action{Verb: Update, Reason: ReasonInPlace, Revision: p.Update, Change: change, Conditions: p.conditions(v, next)}
	if next != v.state {
		a.To = next
	}
	p.begin(v, change, a)
}

// prepareUpdate leads a Pod to the gate before its update. A Pod whose hook has not yet taken hold
// again after an earlier update gets the hook's labels and finalizers back together with the state;
// otherwise the gate would be open.
func (p *pass) prepareUpdate(v *podState, change *inplace.Change) {
	if !p.takeDown(v) {
		return
	}
	hook := p.Spec.Hooks.InPlaceUpdate
	a := Action{Verb: Move, Reason: ReasonPrepareUpdate, To: apps.StatePreparingUpdate}
	if v.state == apps.StateUpdated {
		a.Labels = inplace.Values(hook.LabelsHandler)
		a.AddFinalizers = hook.FinalizersHandler
	}
	a.Conditions = p.conditions(v, apps.StatePreparingUpdate)
	p.begin(v, change, a)
}

// begin takes the next step towards an update in place, if the API server accepts its writes. The Pod
// is paid for in any case, so that there are no more trials than the budget has room for updates.
func (p *pass) begin(v *podState, change *inplace.Change, a Action) {
	if !p.tried(v, change) {
		return
	}
	if p.Trials != nil {
		a.Class = p.classOf(v, change)
	}
	p.act(v, a)
}

// restart takes the Pod out of its endpoints, waits for the grace period, and then
// changes its containers. A Pod whose containers are already changing is out of its
// endpoints. Without a grace period it leaves them in the same action.
func (p *pass) restart(v *podState, change *inplace.Change) {
	at, drained := v.graceOver(p.Update.Name, p.Spec.Grace)
	drained = drained || (v.pending && v.out)
	if drained && p.Now.Before(at) {
		p.wakeAt(at)
		p.tried(v, change)
		return
	}
	if !p.takeDown(v) {
		return
	}
	a := Action{Verb: Update, Reason: ReasonInPlace, To: apps.StateUpdating, Revision: p.Update, Change: change}
	if !drained && !v.changing() {
		a.Conditions = []Condition{outOfService(p.Update.Name)}
		if p.Spec.Grace > 0 {
			p.wakeAt(graceEnd(p.Now, p.Spec.Grace))
			a = Action{Verb: Move, Reason: ReasonStartInPlace, Conditions: a.Conditions}
		}
	}
	p.begin(v, change, a)
}

// choose selects the Pods that should have the update revision: at most the old Pods above
// the partition, and at most as many as updated Pods are missing, in the user's order.
// While paused it selects none, so that a Pod waiting for its update returns to service.
func (p *pass) choose() {
	p.tallyRevisions()
	if p.ClaimsRefused != "" {
		p.problem(ProblemClaims, "%s", p.ClaimsRefused)
		p.wakeAt(p.ClaimsRefusedUntil)
	}
	if p.UpdateRefused != "" {
		p.problem(ProblemTemplate, "%s", p.UpdateRefused)
		p.wakeAt(p.RefusedUntil)
		return
	}
	if p.Spec.beginsNone() {
		return
	}
	toUpdate := p.Spec.Replicas - p.Spec.partition() - p.updated
	goOn := min(p.atGate, toUpdate) // whatever the partition keeps
	need := min(p.old-p.atGate-p.spared-p.Spec.partition(), toUpdate-p.atGate)
	if need <= 0 && goOn <= 0 {
		return
	}
	candidate := func(v *podState) bool { return !v.isUpdated && !v.toBeDeleted() && p.goesBack(v) && p.updatable(v) }
	at, others := split(p.orderForUpdate(list.Only(p.pods, candidate)), p.countsAsUpdated)
	p.queue = append(at[:min(max(goOn, 0), len(at))], others[:min(max(need, 0), len(others))]...)
	for _, v := range p.queue {
		v.chosen = true
	}
}

// countsAsUpdated reports whether an old Pod counts as updated when the set scales, because it is at the
// gate before its update.
func (p *pass) countsAsUpdated(v *podState) bool {
	return p.Spec.PreparingAsUpdated && v.state == apps.StatePreparingUpdate
}

func (p *pass) tallyRevisions() {
	for _, v := range p.pods {
		switch {
		case v.toBeDeleted():
		case v.isUpdated:
			p.updated++
		case p.goesBack(v):
			p.old++
			p.atGate += one(p.countsAsUpdated(v))
			p.spared += one(v.fixed)
		}
	}
}

// updatable reports whether an old Pod can reach the update revision by the user's
// method. If it cannot, updatable records why and leaves the Pod alone.
func (p *pass) updatable(v *podState) bool {
	if p.Spec.Method == apps.UpdateReCreate {
		return true
	}
	change, err := p.change(v)
	switch {
	case err == nil:
		if change.Unranked != "" { // only report it: a fix needs new Pods
			p.problem(ProblemPriority,
				"%s of container %s in spec.template is not a whole number and counts as 0: give it a value such as \"10\" with the next change that recreates the Pods",
				apps.EnvContainerPriority, change.Unranked)
		}
		return true
	case errors.Is(err, errUnreadable):
		p.problem(ProblemRevision, "ControllerRevision %s cannot be read, so Pod %s stays as it is: delete the Pod so that it is recreated",
			v.revision, v.pod.Name)
		return false
	case p.Spec.Method == apps.UpdateInPlaceIfPossible:
		return true
	case errors.Is(err, errGone):
		p.problem(ProblemNotInPlace,
			"updateStrategy.type is InPlaceOnly, but the ControllerRevision %q of Pod %s is gone: delete the Pod so that it is recreated",
			v.revision, v.pod.Name)
	default:
		p.problem(ProblemNotInPlace, "updateStrategy.type is InPlaceOnly, but %v: undo that change, or set the type to InPlaceIfPossible", err)
	}
	return false
}

var errUnreadable = errors.New("revision cannot be read")
var errGone = errors.New("revision is gone")
var errClaims = &inplace.Refusal{
	Field: "spec.volumeClaimTemplates", Why: "the claims of its Pods were created from others",
}

// change returns how the Pod reaches the update revision in place.
func (p *pass) change(v *podState) (*inplace.Change, error) {
	if v.impossible {
		return nil, errImpossible
	}
	if v.pending {
		return inplace.Pending(v.pod, p.Update.Template), nil
	}
	if p.Spec.RecreateForClaims && !p.hasClaims(v) {
		return nil, errClaims
	}
	if p.changes[v.hash] == nil {
		p.changes[v.hash] = sync.OnceValues(func() (*inplace.Change, error) { return p.Change(v.hash) })
	}
	change, err := p.changes[v.hash]()
	if err != nil {
		return nil, err
	}
	return change.For(v.pod)
}

// Change returns how a Pod of the revision with that hash reaches the update revision in place, or why
// it cannot.
func (s *Snapshot) Change(hash string) (*inplace.Change, error) {
	switch from := s.Revisions[hash]; {
	case from == nil:
		return nil, errGone
	case from.Template == nil:
		return nil, errUnreadable
	default:
		change, err := inplace.Diff(from.Template, s.Update.Template)
		if err == nil && s.NoResize {
			err = change.WithoutResize()
		}
		return change, err
	}
}
