// SPDX-License-Identifier: Apache-2.0

package plan

import (
	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// DrainResult is how a drain that somebody waits for has ended, or why there was none.
type DrainResult string

// Values of DrainResult, of which docs/metrics.md says what they mean.
const (
	DrainDone      DrainResult = "done"
	DrainDeadline  DrainResult = "deadline"
	DrainTakenBack DrainResult = "takenBack"
	DrainSkipped   DrainResult = "skipped"
	DrainForced    DrainResult = "forced"
	DrainUnguarded DrainResult = "unguarded"
	DrainCutShort  DrainResult = "cutShort"
)

// DrainResults are all of them.
func DrainResults() []DrainResult {
	return []DrainResult{DrainDone, DrainDeadline, DrainTakenBack, DrainSkipped, DrainForced, DrainUnguarded, DrainCutShort}
}

// count is the result of the drain that ends now, and notes that it is known. Nobody waits for the drain of a
// Pod that no Registration selects any more.
func (r *Record) count() []DrainResult {
	if r.Counted || r.Gate == GateLeaving {
		return nil
	}
	r.Counted = true
	if r.Forced {
		return []DrainResult{DrainDeadline}
	}
	return []DrainResult{DrainDone}
}

// abandon is the result of a CloneSet's drain whose Pod is wanted again, nil if there is none. A deletion
// request that is taken back has its result from that.
func (r *Record) abandon() []DrainResult {
	if r == nil || r.Counted || r.Gate != GateInPlaceUpdate && r.Gate != GatePreDelete {
		return nil
	}
	return []DrainResult{DrainTakenBack}
}

// OutCause is why a Pod is out of its registries for a time.
type OutCause string

// Values of OutCause, of which docs/metrics.md says what they mean.
const (
	OutForUpdate   OutCause = "update"
	OutForDeletion OutCause = "deletion"
	OutOfOrder     OutCause = "other"
)

// CauseOut is why a Pod leaves its registries that comes back, as the Pod shows it when it leaves.
func CauseOut(pod *corev1.Pod) OutCause {
	_, requested := pod.Annotations[usherv1alpha1.AnnotationDeletionRequest]
	switch appsv1alpha1.LifecycleState(pod.Labels[appsv1alpha1.LabelLifecycleState]) {
	case appsv1alpha1.StatePreparingUpdate, appsv1alpha1.StateUpdating, appsv1alpha1.StateUpdated:
		return OutForUpdate
	case appsv1alpha1.StatePreparingDelete:
		return OutForDeletion
	case appsv1alpha1.StatePreparingNormal, appsv1alpha1.StateNormal: // nothing in the state says why
	}
	if requested {
		return OutForDeletion
	}
	return OutOfOrder
}
