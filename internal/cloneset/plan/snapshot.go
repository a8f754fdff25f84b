// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// Snapshot is everything that a plan is made from. Nothing in it may change while a plan
// is made, and the plan shares its Pods.
type Snapshot struct {
	// Now is the time of the decision.
	Now time.Time
	// Set is the name of the CloneSet.
	Set string
	// Deletion says how the set parts with its Pods if it is being deleted.
	Deletion Deletion
	// ExcludePreparingDelete leaves Pods in PreparingDelete out of the replica count, so
	// that their replacements are created at once.
	ExcludePreparingDelete bool
	// Spec is what the user wants.
	Spec Spec
	// Current is the revision of the last finished rollout, Update that of the template.
	Current, Update *revision.Revision
	// UpdateRefused is why the API server refuses Pods of the update revision; "" if it
	// does not. While refused, no Pod is created in it or updated to it.
	UpdateRefused string
	// RefusedUntil is when the API server is asked again; zero if it is not.
	RefusedUntil time.Time
	// NoResize means that the API server resizes no Pods: other cpu or memory needs a new
	// Pod.
	NoResize bool
	// Revisions are the known revisions by hash, including Current and Update.
	Revisions map[string]*revision.Revision
	// Drained is since when Pods are known to be out of service for an update: later than
	// their conditions say, if the API server was slow. For a Pod that is missing here,
	// its condition counts.
	Drained map[types.UID]time.Time
	// Pods are the set's own Pods in name order.
	Pods []*corev1.Pod
	// PodInfos are those of the Pods, by index; a Pod without one is read.
	PodInfos []*PodInfo
	// Deferred are the deletions that the API server has deferred, by the Pod's UID.
	Deferred map[types.UID]Deferral
	// Nodes are the node labels that Spec.Spread names, by node, for the Pods' nodes.
	Nodes map[string]map[string]string
	// GoingNodes are the nodes that Pods are to leave, and the taints that say so.
	GoingNodes map[string][]corev1.Taint
	// Pulls are the images that nodes pull before Pods leave service.
	Pulls Pulls
	// Claims are the set's own claims in name order.
	Claims []*corev1.PersistentVolumeClaim
	// DeletedInstances are the ids of instances whose Pod this controller has deleted, or may
	// have if the answer was lost, and whose claims are still to be deleted.
	DeletedInstances map[string]bool
	// ReleasedInstances are the ids of instances whose Pod exists but does not belong to the set:
	// it was released, and its claims are in use for as long as it runs.
	ReleasedInstances map[string]bool
	// ClaimsRefused is why the API server refuses claims of the templates; "" if it does
	// not. While refused, no Pod is created that needs one, and none is recreated.
	ClaimsRefused string
	// ClaimsRefusedUntil is when the API server is asked again; zero if it is not.
	ClaimsRefusedUntil time.Time
	// Starts bounds how many Pods one pass takes out of service or creates, so that
	// finished Pods never wait behind a long queue of new starts. Half as many may be
	// updates. 0 means no bound.
	Starts int
}

// DefaultStarts is Snapshot.Starts of a controller that does not know its API server yet.
const DefaultStarts = 32

// Spec is what the user wants: defaults filled in, percentages not yet computed, and
// independent of any API version.
type Spec struct {
	Replicas int
	// ScaleMaxUnavailable bounds unavailable Pods while Pods are added; nil means no
	// bound.
	ScaleMaxUnavailable *Count
	// PodsToDelete names Pods to be deleted first.
	PodsToDelete []string
	// ClaimTemplates are the names of the claims that each Pod gets.
	ClaimTemplates []string
	// DisableClaimReuse deletes the claims with their Pod, whoever deleted it.
	DisableClaimReuse bool
	// Method is how Pods change to a new revision.
	Method apps.UpdateStrategyType
	// Partition is how many Pods keep the old revision.
	Partition      Count
	MaxUnavailable Count
	MaxSurge       Count
	Paused         bool
	// Weights, or the trailing numbers of the labels OrderKeys, and Scatter order the update.
	Weights   []WeightTerm
	OrderKeys []apps.UpdatePriorityOrderTerm
	Scatter   []apps.UpdateScatterTerm
	// Grace is how long a Pod is not ready before its containers change.
	Grace time.Duration
	// MinReady is how long a Pod must be ready to be available.
	MinReady time.Duration
	// ProgressDeadline is how long a rollout may stall; 0 means forever.
	ProgressDeadline time.Duration
	// Spread decides which Pods share a domain; without it, a node is one.
	Spread []SpreadTerm
	Pull   PullSpec
	Hooks  lifecycle.Hooks
}

// WeightTerm gives matching Pods a weight.
type WeightTerm struct {
	Weight   int
	Selector labels.Selector
}
