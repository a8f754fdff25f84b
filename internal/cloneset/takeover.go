// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// annotationTakenOver holds since when a claim belongs to its present Pod, if it belonged
// to another one before.
//
// Between the deletion of a Pod and that of its claims another process may become leader:
// this one was suspended there, or its request was slow. To the new leader the claims
// wait for the next Pod. It creates that Pod; if its claims were then deleted, the Pod
// would run on, and its data would be gone when it ends. So a process that takes claims
// over first writes that to each of them, and a process that deletes them does so only
// while they are what they were when it decided to delete the Pod. Either the deletion
// comes first, and the claim is not taken over, or it meets the annotation.
const annotationTakenOver = "usher.dev/taken-over"

// errTakenOver means that a claim to be deleted belongs to the next Pod by now.
var errTakenOver = errors.New("the claim was taken over")

// sameUse reports whether two versions of a claim belong to the same Pod.
func sameUse(a, b *corev1.PersistentVolumeClaim) bool {
	return a.UID == b.UID && a.Annotations[annotationTakenOver] == b.Annotations[annotationTakenOver]
}

// takeOverTries bounds how often a claim that changes meanwhile is read again.
const takeOverTries = 3

// takeOver assigns a claim to the next Pod. It returns false if there is no such claim,
// and errClaimTaken if it cannot be used.
func (r *Reconciler) takeOver(ctx context.Context, set *apps.CloneSet, name string) (bool, error) {
	for range takeOverTries {
		claim, err := r.findClaim(ctx, set, name)
		if claim == nil || err != nil {
			return false, err
		}
		err = r.markTakenOver(ctx, set, claim)
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err == nil, err
		}
	}
	return false, fmt.Errorf("take over claim %s: %w", name, errClaimBusy)
}

func (r *Reconciler) markTakenOver(ctx context.Context, set *apps.CloneSet, claim *corev1.PersistentVolumeClaim) error {
	now := r.Clock.Now()
	mark := map[string]string{annotationTakenOver: now.UTC().Format(time.RFC3339Nano)}
	taken, err := mergeVersion(ctx, r.Client, "", claim, map[string]any{"metadata": map[string]any{"annotations": mark}})
	if err != nil {
		return fmt.Errorf("take over claim %s: %w", claim.Name, err)
	}
	r.claims.noteCreated(set, taken, now)
	return nil
}
