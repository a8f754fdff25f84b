// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Labels and annotations of the wire contract. Every client of OpenKruise CloneSets
// uses them, so none may be renamed.
const (
	// LabelInstanceID ties a Pod to its PersistentVolumeClaims. Its value is the random
	// suffix of the Pod's name.
	LabelInstanceID = "apps.kruise.io/cloneset-instance-id"
	// LabelSpecifiedDelete, set to "true" on a Pod, asks the controller to replace that
	// Pod within the budgets. Other values have no effect.
	LabelSpecifiedDelete = "apps.kruise.io/specified-delete"
	// LabelScalingExcludePreparingDelete, set to "true" on a CloneSet, excludes Pods in
	// PreparingDelete from the replica count.
	LabelScalingExcludePreparingDelete = "apps.kruise.io/cloneset-scaling-exclude-preparing-delete"
	// LabelRevision holds a Pod's revision in long form, "<cloneset>-<hash>"; "<hash>" if that
	// has more than 63 characters.
	LabelRevision = "controller-revision-hash"
	// LabelTemplateHash holds a Pod's revision in short form, "<hash>".
	LabelTemplateHash = "pod-template-hash"

	// LabelLifecycleState holds the Pod's LifecycleState.
	LabelLifecycleState = "lifecycle.apps.kruise.io/state"
	// AnnotationLifecycleTimestamp holds the time, in RFC 3339, at which the Pod
	// entered that state.
	AnnotationLifecycleTimestamp = "lifecycle.apps.kruise.io/timestamp"
	// AnnotationInPlaceUpdateState holds the record of the Pod's latest in-place
	// update, as JSON.
	AnnotationInPlaceUpdateState = "apps.kruise.io/inplace-update-state"
	// AnnotationInPlaceUpdateGrace holds the in-place update that is waiting for its
	// grace period, as JSON.
	AnnotationInPlaceUpdateGrace = "apps.kruise.io/inplace-update-grace"
	// AnnotationPullParallelism, AnnotationPullMinUpdatedReady and AnnotationPullTimeout are a
	// CloneSet's: how many nodes pull a new image at a time (a number, or a percentage of the
	// replicas), how many Pods must be updated and ready before they do so for more Pods than
	// that, and how many seconds a pull may take.
	AnnotationPullParallelism     = "apps.kruise.io/image-predownload-parallelism"
	AnnotationPullMinUpdatedReady = "apps.kruise.io/image-predownload-min-updated-ready-pods"
	AnnotationPullTimeout         = "apps.kruise.io/image-predownload-timeout-seconds"
	// EnvContainerPriority names the environment variable that orders containers at
	// launch and during an in-place update, highest first.
	EnvContainerPriority = "KRUISE_CONTAINER_PRIORITY"
	// AnnotationLaunchPriority, set to "Ordered" in a template, has containers start in the order
	// in which they are listed. Other values have no effect.
	AnnotationLaunchPriority = "apps.kruise.io/container-launch-priority"
)

// FinalizerPreDelete is on each CloneSet with a preDelete hook. It keeps a deleted CloneSet
// until its Pods have passed that hook. It is Usher's own: another controller of CloneSets
// does not remove it.
const FinalizerPreDelete = "usher.dev/pre-delete"

// These annotations of a CloneSet, set to "true", ask for what OpenKruise does behind feature gates that
// are off by default: CloneSetPartitionRollback, PreparingUpdateAsUpdate and
// RecreatePodWhenChangeVCTInCloneSetGate. Other values have no effect.
const (
	// AnnotationPartitionRollback rolls Pods back to the current revision when more than the
	// partition allows have the update revision.
	AnnotationPartitionRollback = "usher.dev/partition-rollback"
	// AnnotationPreparingUpdateAsUpdated counts Pods in PreparingUpdate as updated when the set
	// scales.
	AnnotationPreparingUpdateAsUpdated = "usher.dev/preparing-update-as-updated"
	// AnnotationRecreateForClaims recreates a Pod, instead of updating it in place, if its claims are
	// not those of spec.volumeClaimTemplates.
	AnnotationRecreateForClaims = "usher.dev/recreate-for-claims"
)

// AnnotationImagesFirst, set to "false" on a CloneSet, has Pods leave service before their
// nodes have the new image. AnnotationSurgeInPlace, set to "false" on a CloneSet, says that its Pods
// need no surge while they are updated in place, unless maxUnavailable is 0. LabelPullsFor, on a Pod that
// pulls an image, holds the UID of the CloneSet. AnnotationFailuresBefore, on a Pod of a CloneSet, is how
// many attempts to create such a Pod had failed in a row. All are Usher's own.
const (
	AnnotationImagesFirst    = "usher.dev/images-first"
	AnnotationSurgeInPlace   = "usher.dev/surge-in-place"
	LabelPullsFor            = "usher.dev/pulls-for"
	AnnotationFailuresBefore = "usher.dev/failures-before"
)

// EnvLaunch is an environment variable of containers that do not start first. Its value is that of an
// annotation of the Pod: AnnotationLaunch with the priority, such as "usher.dev/launch-0". Usher sets the
// annotation when the containers of higher priorities are ready. Both are Usher's own.
const (
	EnvLaunch        = "USHER_LAUNCH"
	AnnotationLaunch = "usher.dev/launch-"
)

// Pod conditions that CloneSet Pods have as readiness gates.
const (
	// ConditionInPlaceUpdateReady is False during an in-place update of a container, so
	// that endpoints drain before the container restarts.
	ConditionInPlaceUpdateReady corev1.PodConditionType = "InPlaceUpdateReady"
	// ConditionPodReady is False while a hook with markPodNotReady holds the Pod.
	ConditionPodReady corev1.PodConditionType = "KruisePodReady"
)

// LifecycleState is a Pod's state in the CloneSet lifecycle.
type LifecycleState string

// The six states. A Pod without the label counts as Normal.
const (
	// StatePreparingNormal holds a new Pod until its preNormal hook is satisfied.
	StatePreparingNormal LifecycleState = "PreparingNormal"
	// StateNormal is the only state in which a Pod can be available.
	StateNormal LifecycleState = "Normal"
	// StatePreparingUpdate holds a Pod before its in-place update until the
	// inPlaceUpdate hook is released.
	StatePreparingUpdate LifecycleState = "PreparingUpdate"
	// StateUpdating lasts from the write of the new spec until the kubelet runs it.
	StateUpdating LifecycleState = "Updating"
	// StateUpdated waits until the inPlaceUpdate hook is set again.
	StateUpdated LifecycleState = "Updated"
	// StatePreparingDelete holds a Pod before its deletion until the preDelete hook is
	// released.
	StatePreparingDelete LifecycleState = "PreparingDelete"
)
