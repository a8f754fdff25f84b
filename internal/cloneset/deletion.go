// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// This file is what a pass does differently for a CloneSet that is being deleted.

// prepareDeletion reads what the plan for a deleted set is made from. It reads of the spec
// only what an old, illegal spec has too, adopts nothing and creates no revision: nothing
// that can go wrong there may hold the set back. The garbage collector deletes the claims.
func (r *Reconciler) prepareDeletion(ctx context.Context, set *apps.CloneSet, now time.Time) (*plan.Snapshot, *revisions, error) {
	pods, err := r.ownPods(ctx, set, now)
	if err != nil {
		return nil, nil, err
	}
	r.claims.drop(set.UID) // no pass looks at them again
	known := &revisions{
		current: &revision.Revision{Name: set.Status.CurrentRevision}, update: &revision.Revision{Name: set.Status.UpdateRevision},
		collisions: ptr.Deref(set.Status.CollisionCount, 0),
	}
	how, _ := plan.DeletionOf(set)
	return &plan.Snapshot{
		Now: now, Set: set.Name, Deletion: how,
		Spec: plan.Spec{
			Hooks:    lifecycle.FromSpec(set.Spec.Lifecycle),
			MinReady: time.Duration(set.Spec.MinReadySeconds) * time.Second,
		},
		Current: known.current, Update: known.update,
		Pods: pods, PodInfos: plan.ReadPods(pods, r.memory(keyOf(set)).podInfos), Deferred: r.memory(keyOf(set)).deferrals.observed(pods),
		Starts: r.starts(),
	}, known, nil
}

// syncFinalizer adds the finalizer to a set that needs it, or removes it. It returns the
// set as it is then; nil if it is gone.
func (r *Reconciler) syncFinalizer(ctx context.Context, set *apps.CloneSet) (*apps.CloneSet, error) {
	_, hold := plan.DeletionOf(set)
	if slices.Contains(set.Finalizers, apps.FinalizerPreDelete) != hold {
		return r.setFinalizer(ctx, set, hold)
	}
	return existing(set), nil
}

// existing returns nil for a set that is deleted and that nothing holds: the cache does not
// show yet that it is gone.
func existing(set *apps.CloneSet) *apps.CloneSet {
	if set.DeletionTimestamp != nil && len(set.Finalizers) == 0 {
		return nil
	}
	return set
}

// setFinalizer adds or removes the finalizer. It depends on the version of the set: the hook
// may have come or gone, and the finalizers are a list.
func (r *Reconciler) setFinalizer(ctx context.Context, set *apps.CloneSet, hold bool) (*apps.CloneSet, error) {
	finalizers := slices.DeleteFunc(slices.Clone(set.Finalizers), func(f string) bool { return f == apps.FinalizerPreDelete })
	if hold {
		finalizers = append(finalizers, apps.FinalizerPreDelete)
	}
	written, err := mergeVersion(ctx, r, "", set, map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		r.memory(keyOf(set)).stale = true // the cache is behind
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("write the finalizer %s: %w", apps.FinalizerPreDelete, err)
	}
	r.memory(keyOf(written)).note(written)
	return existing(written), nil
}

// endDeletion removes the finalizer from a deleted set whose Pods have all passed the
// preDelete hook. It asks the API server first: what the cache does not show yet, such as a
// Pod that another process created, would be deleted without the hook.
func (r *Reconciler) endDeletion(ctx context.Context, set *apps.CloneSet, left *plan.Snapshot, decided *plan.Plan) error {
	set = r.memory(keyOf(set)).newest(set)
	if _, hold := plan.DeletionOf(set); !hold || !left.Departed() {
		return nil
	}
	live, err := r.livePods(ctx, set)
	if err != nil {
		return err
	}
	for _, pod := range live {
		if pod.DeletionTimestamp == nil && metav1.IsControlledBy(pod, set) {
			r.pods.noteCreated(set, pod, r.Clock.Now())
			decided.More = true
		}
	}
	if decided.More {
		return nil
	}
	_, err = r.setFinalizer(ctx, set, false)
	return err
}
