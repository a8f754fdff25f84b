// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// Plan is what a pass decided.
type Plan struct {
	// Actions concern one Pod each and can run in parallel. Those that bring a Pod back
	// come before those that take one away.
	Actions []Action
	// Problems prevent Pods from being created or updated as asked.
	Problems []Problem
	// RequeueAt is when time alone changes the plan; zero if it does not.
	RequeueAt time.Time
	// More means that the pass left starts undone: another one should follow.
	More bool
	// PrunePodsToDelete are the finished names in spec.scaleStrategy.podsToDelete: their Pods are
	// terminating or gone. A name with a Delete in Actions is finished only if that
	// succeeds.
	PrunePodsToDelete []string
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
	// Because says more than the reason, for people; "" if there is no more to say.
	Because string
	// Pod is the Pod as it was observed; nil for Create.
	Pod *corev1.Pod
	// Conditions are written together with the rest of a Move, so that nobody sees a
	// state without them, and before an Update or Continue, so that a Pod leaves service
	// before its containers change.
	Conditions []Condition
	// To is the state that the Pod moves to; "" keeps the state.
	To apps.LifecycleState
	// Labels are set on the Pod; a nil value removes the key.
	Labels map[string]*string
	// AddFinalizers and RemoveFinalizers are finalizers of hooks.
	AddFinalizers, RemoveFinalizers []string
	// Revision is what Create creates and Update leads to.
	Revision *revision.Revision
	// Change is what Update does.
	Change *inplace.Change
	// Instance is the id that Create takes over, or whose claims Discard and Provide
	// concern; with "", Create draws a new one.
	Instance string
	// Taken are the ids that a new one must differ from. Do not change it.
	Taken map[string]bool
	// Claims are those that Delete and Discard delete.
	Claims []*corev1.PersistentVolumeClaim
}

// LeavesService reports whether the Pod moves to a gate through which it leaves service.
func (a *Action) LeavesService() bool {
	return a.To == apps.StatePreparingUpdate || a.To == apps.StatePreparingDelete
}

// Condition is the status of a condition that the controller owns.
type Condition struct {
	Type   corev1.PodConditionType
	Status corev1.ConditionStatus
	// Reason is one word for programs. Message names the revision if an update makes the
	// condition False.
	Reason, Message string
}

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

// Blocked is a Pod that waits at a gate for someone outside, in an update for its
// containers, for a container that is stuck, or for the API server to let it be deleted.
type Blocked struct {
	Pod string
	// Gate is the hook in spec.lifecycle, GateContainer or GateDeletion.
	Gate string
	// State is the Pod's lifecycle state.
	State apps.LifecycleState
	// Keys are the labels and finalizers that hold it, or that are missing; with
	// GateContainer, the kubelet's reason; with GateDeletion, the API server's.
	Keys []string
	// Since is when it reached the gate, or stopped being ready; zero if unknown.
	Since time.Time
	// Batch is what an update in place waits for; nil if the Pod is at a gate.
	Batch *Batch
	// Stuck is the container that the Pod waits for; nil if it waits for a hook or a
	// Batch.
	Stuck *Stuck
	// Deferral is why the API server does not let it be deleted yet; nil if it does.
	Deferral *Deferral
	// SetDeleted means that the CloneSet is deleted once such Pods are gone.
	SetDeleted bool
}

// Batch is a group of a Pod's containers that are updated together, and those after them.
type Batch struct {
	// Containers are those that are not ready yet.
	Containers []string
	// Next are the containers that wait for them.
	Next []string
	// Since is when they were updated; zero if unknown.
	Since time.Time
}

// String describes what the Pod waits for, and since when.
func (b Blocked) String() string {
	if b.Batch != nil {
		return b.Batch.text(b.Pod, b.State)
	}
	if b.Stuck != nil {
		return b.Stuck.text(b.Pod, b.Since)
	}
	if b.Deferral != nil {
		return b.Deferral.text(b.Pod)
	}
	what := "to let go of"
	if b.State == apps.StatePreparingNormal || b.State == apps.StateUpdated {
		what = "to set"
	}
	text := fmt.Sprintf("Pod %s is in %s and waits for the %s hook %s %s%s", b.Pod, b.State, b.Gate, what, strings.Join(b.Keys, ", "), since("", b.Since))
	if b.SetDeleted {
		text += ", before the CloneSet is deleted (to delete both without waiting, remove spec.lifecycle.preDelete)"
	}
	return text
}

func (b *Batch) text(pod string, state apps.LifecycleState) string {
	return fmt.Sprintf("Pod %s is in %s and %s, which have a lower %s%s", pod, state, b.Wait(), apps.EnvContainerPriority, since(",", b.Since))
}

// Wait says what the Pod waits for.
func (b *Batch) Wait() string {
	return fmt.Sprintf("waits for its containers %s to be ready before it updates %s", strings.Join(b.Containers, ", "), strings.Join(b.Next, ", "))
}

// since says since when something lasts; "" if nobody knows.
func since(comma string, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return comma + " since " + at.UTC().Format(time.RFC3339)
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
	// ProblemPriority: a container's launch priority is not a number.
	ProblemPriority = "PriorityUnreadable"
)
