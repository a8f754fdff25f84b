// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
)

// pass is the state of one pass over a snapshot.
type pass struct {
	*Snapshot
	plan Plan
	// states are all Pods in name order; pods are the active ones.
	states []podState
	pods   []*podState
	// ended are the Pods that will never run again.
	ended  []*podState
	ledger ledger
	// old and updated count the Pods that are to stay, by revision. atGate counts those of the old ones
	// that are at the gate before their update; see Spec.PreparingAsUpdated. spared counts the old ones that
	// cancelScaleIn has chosen: their return may still fail, so they free no place of the partition.
	old, updated, atGate, spared int
	// queue holds the chosen Pods in update order.
	queue []*podState
	// disturbed counts the chosen Pods whose update needs a surge, up to the largest surge.
	disturbed int
	// begun counts the Pods whose update this pass advances.
	begun int
	// replacing has the counts of replace; nil if no Pod waits to be replaced.
	replacing *replacements
	// named are the Pods that spec.scaleStrategy.podsToDelete lists.
	named sets.Set[string]
	// instances are those that have claims, in the order of their ids.
	instances []*instance
	byID      map[string]*instance
	changes   Changes
}

// Make decides what the set needs next.
func Make(s *Snapshot) Plan {
	if back := s.rollback(); back != nil {
		s = back
	}
	p := newPass(s)
	if s.Deletion != NotDeleted {
		p.planDeletion()
		return p.finish()
	}
	p.cancelScaleIn()
	p.choose()
	p.heedTrials()
	p.countDisturbed()
	p.awaitImages()
	p.openLedger()
	p.findFailures()
	p.refresh()
	p.create()
	p.release()
	p.replace()
	p.scaleIn()
	p.update()
	p.syncClaims()
	p.prunePodsToDelete()
	return p.finish()
}

// spare recycles the states of passes that have ended: in a large set they are most of what a pass
// allocates.
var spare = sync.Pool{New: func() any { return new([]podState) }}

func newPass(s *Snapshot) *pass {
	p := &pass{Snapshot: s, named: sets.New(s.Spec.PodsToDelete...), changes: s.Changes}
	if p.changes == nil {
		p.changes = Changes{}
	}
	p.states = slices.Grow((*spare.Get().(*[]podState))[:0], len(s.Pods))[:len(s.Pods)]
	p.pods = make([]*podState, 0, len(s.Pods))
	for i := range s.Pods {
		v := &p.states[i]
		s.read(v, s.at(i))
		v.specified = v.specified || (len(p.named) > 0 && p.named.Has(v.pod.Name))
		switch {
		case v.terminate:
		case v.ended():
			p.ended = append(p.ended, v)
		default:
			p.pods = append(p.pods, v)
		}
	}
	p.readInstances()
	p.readNodes()
	return p
}

// toBeDeleted reports whether the Pod is to be deleted anyway. A Pod that leaves its node counts as
// named for deletion.
func (p *podState) toBeDeleted() bool { return p.specified || p.state == apps.StatePreparingDelete }

// awaitsRemoval reports whether the Pod was named for deletion but its removal has not begun.
func (p *podState) awaitsRemoval() bool {
	return p.specified && p.state != apps.StatePreparingDelete && !p.removed
}

// counted reports whether the Pod holds a place in the replica count.
func (p *pass) counted(v *podState) bool {
	return !p.ExcludePreparingDelete || v.state != apps.StatePreparingDelete
}

// wakeAt asks for a pass at that time or earlier.
func (p *pass) wakeAt(at time.Time) { p.plan.RequeueAt = list.Earliest(p.plan.RequeueAt, at) }

// act records the Pod's one action of this pass. An action of refresh is replaced by a removal, and one
// that only corrects conditions by an update: to correct a condition and then change it again would
// waste a write, and the condition would flap.
func (p *pass) act(v *podState, a Action) {
	a.Pod = v.pod
	if v.acted {
		p.plan.Actions[v.action] = a
		return
	}
	v.acted, v.action = true, len(p.plan.Actions)
	p.plan.Actions = append(p.plan.Actions, a)
}

// outOfStarts reports whether the pass has no more starts: then the next pass takes the step that
// failed.
func (p *pass) outOfStarts() bool { return p.ledger.starts == 0 }

// remove deletes a Pod, or moves it to the gate before its deletion.
func (p *pass) remove(v *podState, reason string) { p.removeBecause(v, reason, v.leavesNode) }

// removeBecause is remove with an explanation in addition to the reason.
func (p *pass) removeBecause(v *podState, reason, because string) {
	v.removed = true
	if !v.holds(p.Spec.Hooks.PreDelete) {
		p.ledger.drop(v)
		v.leaving = false
		p.delete(v, Action{Reason: reason, Because: because, Claims: p.claimsOf(v)})
		return
	}
	a := Action{
		Verb: Move, Reason: reason, Because: because, To: apps.StatePreparingDelete,
		Conditions: p.conditions(v, apps.StatePreparingDelete),
	}
	if reason != ReasonScaleIn && reason != ReasonSetDeleted {
		// Mark the Pod, so that cancelling a scale-in does not bring this Pod back.
		a.Labels = inplace.Values(map[string]string{apps.LabelSpecifiedDelete: "true"})
	}
	if p.ExcludePreparingDelete {
		p.ledger.drop(v)
	} else {
		p.ledger.hold(v)
		v.leaving = true
	}
	p.act(v, a)
}

// delete deletes a Pod, unless the API server has asked to wait.
func (p *pass) delete(v *podState, a Action) {
	if v.deferred {
		p.wakeAt(p.Deferred[v.pod.UID].Until)
		return
	}
	a.Verb = Delete
	p.act(v, a)
}

// problem records a problem once.
func (p *pass) problem(reason, format string, args ...any) {
	if !slices.ContainsFunc(p.plan.Problems, func(known Problem) bool { return known.Reason == reason }) {
		p.plan.Problems = append(p.plan.Problems, Problem{Reason: reason, Message: fmt.Sprintf(format, args...)})
	}
}

// finish ends the pass and sorts the plan: Pods that come back precede those that leave. A plan without
// actions asks for no pass at once, which would decide the same: the rest waits for an event, or for
// RequeueAt.
func (p *pass) finish() Plan {
	p.plan.More = p.plan.More && len(p.plan.Actions)+len(p.plan.Pulls)+len(p.plan.Trials) > 0
	slices.SortStableFunc(p.plan.Actions, func(a, b Action) int { return cmp.Compare(rank(a.Verb), rank(b.Verb)) })
	clear(p.states) // they would retain Pods; and a pointer into the pass, all of it
	spare.Put(new(p.states))
	return p.plan
}

// rank returns the order in which the verbs are executed. A map would cost more than the rest of the
// sorting.
func rank(verb Verb) int {
	switch verb {
	case Move, Continue:
		return 0
	case Create:
		return 1
	case Delete:
		return 2
	}
	return 3
}

// refused reports whether the API server refuses Pods of the revision.
func (p *pass) refused(r *revision.Revision) bool {
	return p.UpdateRefused != "" && revision.Same(r.Name, p.Update.Name)
}

// Plan is the decision of a pass.
type Plan struct {
	// Actions concern one Pod each and can run in parallel. Actions that bring a Pod back come before
	// actions that take one away.
	Actions []Action
	// Problems prevent Pods from being created or updated as asked.
	Problems []Problem
	// RequeueAt is when time alone changes the plan; zero if it does not.
	RequeueAt time.Time
	// More means that the pass had too few starts for all it could do: another one should follow.
	More bool
	// PrunePodsToDelete are the finished names in spec.scaleStrategy.podsToDelete: their Pods are
	// terminating or gone. A name with a Delete in Actions is finished only if that
	// succeeds.
	PrunePodsToDelete []string
	// Pulls are the pull Pods to create, EndPulls those to delete. PullsSkipped say where Pods
	// do not wait for an image, and why.
	Pulls        []Pull
	EndPulls     []*corev1.Pod
	PullsSkipped []string
	// Trials are questions to the API server that must be answered first: the caller makes the trials
	// and plans again, and carries out nothing of a plan with trials.
	Trials []Attempt
	// PullsGivenUp are images whose pull Pods do not run; the next snapshot has them in Pulls.GivenUp.
	PullsGivenUp []ImageOnNode
	// Waits are the Pods that stay in service because of an image, or because the API server refuses their
	// update.
	Waits []Blocked
	// Failures are the revisions whose Pods fail early, by hash; for the next pass's Snapshot.
	Failures map[string]Failure
	// ScaleUpLimited is how many Pods scaleStrategy.maxUnavailable keeps from being
	// created now.
	ScaleUpLimited int
}

// Verb is the kind of an action.
type Verb string

// The verbs.
const (
	// Move changes a Pod's conditions, state, labels and finalizers.
	Move Verb = "Move"
	// Update changes a Pod's containers or metadata to another revision in place.
	Update Verb = "Update"
	// Continue continues an update in place that takes more than one write.
	Continue Verb = "Continue"
	// Create creates a Pod.
	Create Verb = "Create"
	// Delete deletes a Pod, and then its claims.
	Delete Verb = "Delete"
	// Discard deletes claims whose Pod is gone or terminating.
	Discard Verb = "Discard"
	// Provide creates the claims that a Pod lacks.
	Provide Verb = "Provide"
)

// Action is one step for one Pod.
type Action struct {
	Verb Verb
	// Reason is one word that says why; see the Reason constants.
	Reason string
	// Because explains the reason to people; "" if there is nothing to add.
	Because string
	// Pod is the Pod as it was observed; nil for Create.
	Pod *corev1.Pod
	// Conditions are written together with the rest of a Move, so that nobody sees a state without
	// them, but after a Move that changes keys that users choose, and before an Update or Continue, so
	// that a Pod leaves service before its containers change.
	Conditions []Condition
	// To is the state that the Pod moves to; "" keeps the state.
	To apps.LifecycleState
	// Launch is the annotation that lets further containers start; "" if a Move lets none.
	Launch string
	// Labels are set on the Pod; a nil value removes the key.
	Labels map[string]*string
	// AddFinalizers and RemoveFinalizers are finalizers of hooks.
	AddFinalizers, RemoveFinalizers []string
	// Revision is the revision of the Pod to create, or the one that Update leads to.
	Revision *revision.Revision
	// Change is the change that Update makes.
	Change *inplace.Change
	// Class is the class of the Trial that the API server's answer renews; "" if the answer says
	// nothing about other Pods.
	Class string
	// Instance is the id that Create takes over, or whose claims Discard and Provide
	// concern; with "", Create draws a new one.
	Instance string
	// Failures is how many attempts to create such a Pod have failed in a row.
	Failures int
	// Taken are the ids that a new one must differ from. Do not change it.
	Taken sets.Set[string]
	// Claims are the claims that Delete and Discard delete.
	Claims []*corev1.PersistentVolumeClaim
}

// LeavesService reports whether the Pod moves to a gate through which it leaves service.
func (a *Action) LeavesService() bool {
	return a.To == apps.StatePreparingUpdate || a.To == apps.StatePreparingDelete
}

// ChosenKeys returns the labels and finalizers chosen by users that a Move changes, sorted: those of
// hooks, except Usher's own.
func (a *Action) ChosenKeys() []string {
	if a.Verb != Move {
		return nil
	}
	var keys []string
	for key, value := range a.Labels {
		if old, there := a.Pod.Labels[key]; there != (value != nil) || there && old != *value {
			keys = append(keys, key)
		}
	}
	has := func(finalizer string) bool { return slices.Contains(a.Pod.Finalizers, finalizer) }
	lacks := func(finalizer string) bool { return !has(finalizer) }
	keys = slices.Concat(keys, list.Only(a.AddFinalizers, lacks), list.Only(a.RemoveFinalizers, has))
	slices.Sort(keys)
	return list.Only(slices.Compact(keys), func(key string) bool { return key != apps.LabelSpecifiedDelete && !usherv1alpha1.OwnKey(key) })
}

// Condition is a condition that the controller owns. Its reason is one word for programs; its message
// names the revision if an update makes it False.
type Condition = corev1.PodCondition

// Reasons of actions, in addition to those of package lifecycle.
const (
	ReasonConditions       = "Conditions"
	ReasonCleanUp          = "PodEnded"
	ReasonScaleInCancelled = "ScaleInCancelled"
	ReasonScaleOut         = "ScaleOut"
	ReasonScaleIn          = "ScaleIn"
	ReasonHookReleased     = "PreDeleteReleased"
	ReasonSpecified        = "SpecifiedDelete"
	ReasonNodeGoes         = "NodeGoes"
	ReasonRecreate         = "Recreate"
	ReasonInPlace          = "InPlaceUpdate"
	ReasonPrepareUpdate    = "PrepareUpdate"
	ReasonStartInPlace     = "StartInPlaceUpdate"
	ReasonInPlaceDone      = "InPlaceUpdateDone"
	ReasonMarkedNotReady   = "HeldByHook"
	ReasonInService        = "InService"
	// ReasonNextContainers: the containers of a higher launch priority are ready.
	ReasonNextContainers = "NextContainers"
	// ReasonLaunch: the containers of a higher launch priority are ready, so that the next ones may start.
	ReasonLaunch = "LaunchContainers"
	// ReasonResize: the containers' resources have not been written yet.
	ReasonResize       = "ResizeContainers"
	ReasonSetDeleted   = "CloneSetDeleted"
	ReasonInstanceGone = "InstanceGone"
	ReasonClaimMissing = "ClaimMissing"
)

// String describes the action in a line.
func (a Action) String() string {
	var b strings.Builder
	name := "a new Pod"
	switch {
	case a.Pod != nil:
		name = a.Pod.Name
	case a.Instance != "" && a.Verb == Create:
		name += " for the claims of " + a.Instance
	case a.Instance != "":
		name = "claims of " + a.Instance
	}
	fmt.Fprintf(&b, "%s %s (%s)", strings.ToLower(string(a.Verb)), name, a.Reason)
	if a.To != "" {
		fmt.Fprintf(&b, " to %s", a.To)
	}
	if a.Launch != "" {
		fmt.Fprintf(&b, " sets %s", a.Launch)
	}
	for _, claim := range a.Claims {
		fmt.Fprintf(&b, " claim %s", claim.Name)
	}
	for _, c := range a.Conditions {
		fmt.Fprintf(&b, " %s=%s", c.Type, c.Status)
	}
	if a.Revision != nil {
		fmt.Fprintf(&b, " revision %s", a.Revision.Name)
	}
	return b.String()
}

// Problem is something that the user has to change.
type Problem struct {
	// Reason is one word for programs.
	Reason string
	// Message names the field and the remedy.
	Message string
}

// Reasons of problems.
const (
	// ProblemNotInPlace: type InPlaceOnly and a change that needs a new Pod.
	ProblemNotInPlace = "NotPossibleInPlace"
	// ProblemTemplate: the API server refuses Pods of the template.
	ProblemTemplate = "TemplateRefused"
	// ProblemNoSuchPod: a name in podsToDelete is no Pod of the set.
	ProblemNoSuchPod = "PodsToDeleteUnknown"
	// ProblemClaims: the API server refuses claims of volumeClaimTemplates.
	ProblemClaims = "ClaimTemplateRefused"
	// ProblemRevision: the ControllerRevision of a Pod cannot be read.
	ProblemRevision = "RevisionUnreadable"
	// ProblemResize: the cpu and memory of a Pod's containers cannot be changed.
	ProblemResize = "ResizeRefused"
	// ProblemUpdateRefused: the API server refuses what an update in place writes.
	ProblemUpdateRefused = "UpdateRefused"
	// ProblemPodsFail: Pods fail as soon as they are created.
	ProblemPodsFail = "PodsFail"
	// ProblemPriority: a container's launch priority is not a number.
	ProblemPriority = "PriorityUnreadable"
)
