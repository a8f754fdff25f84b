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
	// Pulls are the pull Pods to create, EndPulls those to delete. PullsSkipped say where Pods
	// do not wait for an image, and why.
	Pulls        []Pull
	EndPulls     []*corev1.Pod
	PullsSkipped []string
	// Waits are the Pods that stay in service because of an image.
	Waits []Blocked
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

// Condition is one that the controller owns. Its reason is one word for programs; its
// message names the revision if an update makes it False.
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
