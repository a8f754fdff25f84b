// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// indexOwner indexes objects by the UID of their controller, and Pods without one under
// orphanKey.
const (
	indexOwner = "usher.dev/owner"
	orphanKey  = "orphan"
)

func ownerOf(object client.Object) []string {
	if owner := metav1.GetControllerOf(object); owner != nil {
		return []string{string(owner.UID)}
	}
	return []string{orphanKey}
}

// observe reads everything that a plan is made from. It writes nothing.
func (r *Reconciler) observe(
	ctx context.Context, set *apps.CloneSet, spec plan.Spec, known *revisions, own owned, now time.Time,
) (*plan.Snapshot, error) {
	read := plan.ReadPods(own.pods, r.podInfos.of(keyOf(set)))
	for _, pod := range read {
		if err := r.findRevision(ctx, set, known, pod.Revision()); err != nil {
			return nil, err
		}
	}
	released, err := r.releasedInstances(ctx, set, own.pods, own.claims)
	if err != nil {
		return nil, err
	}
	nodes, err := r.nodeLabels(ctx, spec.Spread, own.pods)
	if err != nil {
		return nil, err
	}
	return &plan.Snapshot{
		Now: now, Set: set.Name, Deleting: set.DeletionTimestamp != nil,
		ExcludePreparingDelete: set.Labels[apps.LabelScalingExcludePreparingDelete] == "true",
		Spec:                   spec,
		Current:                known.current, Update: known.update, Revisions: known.byHash,
		Pods: own.pods, PodInfos: read, Nodes: nodes,
		// What was read after the pass began counts from when it was read, not earlier.
		Drained: r.drains.of(read, r.Clock.Now()),
		Claims:  own.claims, DeletedInstances: r.deletions.of(set, own.pods, own.claims), ReleasedInstances: released,
		Starts: r.Options.Parallel, NoResize: r.Options.NoResize,
	}, nil
}

// ownPods returns the set's Pods as the cache shows them, overlaid with this controller's
// last writes.
func (r *Reconciler) ownPods(ctx context.Context, set *apps.CloneSet, now time.Time) ([]*corev1.Pod, error) {
	cached, err := r.ListPods(ctx, set.Namespace, string(set.UID))
	if err != nil {
		return nil, err
	}
	if r.answers.isStale(client.ObjectKeyFromObject(set)) {
		if err := r.relistPods(ctx, set, cached, now); err != nil {
			return nil, err
		}
		// List again: the watch may have reported a removal meanwhile and dropped the
		// answer that hides the Pod in the older list.
		if cached, err = r.ListPods(ctx, set.Namespace, string(set.UID)); err != nil {
			return nil, err
		}
	}
	pods, unverified := r.writes.merge(set.UID, cached, now)
	for _, entry := range unverified {
		if err := r.verifyPod(ctx, set, entry, now); err != nil {
			return nil, err
		}
	}
	if len(unverified) > 0 {
		// Overlay again: a Pod that turned out to be gone, or to belong to someone else,
		// must not count in the budgets of the very pass that found out. List again too:
		// the watch may have dropped an answer meanwhile that an older list needs.
		if cached, err = r.ListPods(ctx, set.Namespace, string(set.UID)); err != nil {
			return nil, err
		}
		pods, _ = r.writes.merge(set.UID, cached, now)
	}
	return pods, nil
}

// verifyPod asks the API server about a Pod that the cache has contradicted for too long: a
// lost watch event must not freeze the set.
func (r *Reconciler) verifyPod(ctx context.Context, set *apps.CloneSet, entry written, now time.Time) error {
	live := &corev1.Pod{}
	err := r.Reader.Get(ctx, client.ObjectKeyFromObject(entry.object), live)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && live.UID != entry.object.UID):
		// Gone: hide the Pod until the cache shows the deletion, whatever older version
		// it still shows.
		r.writes.forget(entry.object.UID)
		r.writes.note(set.UID, written{object: entry.object, created: entry.created, deleted: true, at: now})
	case err != nil:
		return fmt.Errorf("look up Pod %s: %w", entry.object.Name, err)
	default:
		r.writes.forget(entry.object.UID)
		ours := metav1.IsControlledBy(live, set)
		r.writes.note(set.UID, written{object: live, created: entry.created, deleted: !ours, at: now})
	}
	return nil
}
