// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Labels and annotations of the wire contract. They are shared with every
// client of OpenKruise CloneSets, so none may be renamed.
const (
	// LabelInstanceID ties a Pod to its PersistentVolumeClaims; its value is the
	// random suffix of the Pod's name.
	LabelInstanceID = "apps.kruise.io/cloneset-instance-id"
	// LabelSpecifiedDelete set to "true" on a Pod asks for that Pod to be
	// replaced within the budgets. Any other value asks for nothing.
	LabelSpecifiedDelete = "apps.kruise.io/specified-delete"
	// LabelScalingExcludePreparingDelete set to "true" on a CloneSet leaves Pods
	// in PreparingDelete out of the replica count.
	LabelScalingExcludePreparingDelete = "apps.kruise.io/cloneset-scaling-exclude-preparing-delete"
	// LabelRevision holds the long form of a Pod's revision, "<cloneset>-<hash>".
	LabelRevision = "controller-revision-hash"
	// LabelTemplateHash holds the short form of a Pod's revision, "<hash>".
	LabelTemplateHash = "pod-template-hash"

	// LabelLifecycleState holds the Pod's LifecycleState.
	LabelLifecycleState = "lifecycle.apps.kruise.io/state"
	// AnnotationLifecycleTimestamp holds when the Pod entered that state, in RFC 3339.
	AnnotationLifecycleTimestamp = "lifecycle.apps.kruise.io/timestamp"
	// AnnotationInPlaceUpdateState holds the record of the Pod's latest in-place
	// update, as JSON.
	AnnotationInPlaceUpdateState = "apps.kruise.io/inplace-update-state"
	// AnnotationInPlaceUpdateGrace holds the in-place update that waits for its
	// grace period, as JSON.
	AnnotationInPlaceUpdateGrace = "apps.kruise.io/inplace-update-grace"
	// EnvContainerPriority names the environment variable that orders containers
	// at launch and at in-place update, highest first.
	EnvContainerPriority = "KRUISE_CONTAINER_PRIORITY"
)

// Pod conditions that CloneSet Pods carry as readiness gates.
const (
	// ConditionInPlaceUpdateReady is False while a container is being updated in
	// place, so that endpoints drain before it restarts.
	ConditionInPlaceUpdateReady corev1.PodConditionType = "InPlaceUpdateReady"
	// ConditionPodReady is False while a hook with markPodNotReady holds the Pod.
	ConditionPodReady corev1.PodConditionType = "KruisePodReady"
)

// LifecycleState is a Pod's place in the life that a CloneSet leads it through.
type LifecycleState string

// The six states. A Pod without the label counts as Normal.
const (
	// StatePreparingNormal holds a new Pod until its preNormal hook says yes.
	StatePreparingNormal LifecycleState = "PreparingNormal"
	// StateNormal is the only state in which a Pod can be available.
	StateNormal LifecycleState = "Normal"
	// StatePreparingUpdate holds a Pod before its in-place update until the
	// inPlaceUpdate hook lets go.
	StatePreparingUpdate LifecycleState = "PreparingUpdate"
	// StateUpdating lasts from the new spec until the kubelet runs it.
	StateUpdating LifecycleState = "Updating"
	// StateUpdated waits for the inPlaceUpdate hook to take hold again.
	StateUpdated LifecycleState = "Updated"
	// StatePreparingDelete holds a Pod before its deletion until the preDelete
	// hook lets go.
	StatePreparingDelete LifecycleState = "PreparingDelete"
)
