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

// indexOwner indexes objects by the UID of their controller, and Pods without
// one under orphanKey.
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

// observe reads all that a plan is made from. It writes nothing.
func (r *Reconciler) observe(
	ctx context.Context, set *apps.CloneSet, spec plan.Spec, known *revisions, own owned, now time.Time,
) (*plan.Snapshot, error) {
	read := plan.Read(own.pods, r.readings.of(keyOf(set)))
	for _, pod := range read {
		if err := r.findRevision(ctx, set, known, pod.Revision()); err != nil {
			return nil, err
		}
	}
	elsewhere, err := r.elsewhere(ctx, set, own.pods, own.claims)
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
		Pods: own.pods, Readings: read, Nodes: nodes,
		// What was read after the pass began counts from its reading, not from before.
		Drained: r.drains.of(read, r.Clock.Now()),
		Claims:  own.claims, Departed: r.departures.of(set, own.pods, own.claims), Elsewhere: elsewhere,
		Starts: r.Options.Parallel, NoResize: r.Options.NoResize,
	}, nil
}

// ownPods are the set's Pods as the cache shows them, with what this controller
// wrote last laid over.
func (r *Reconciler) ownPods(ctx context.Context, set *apps.CloneSet, now time.Time) ([]*corev1.Pod, error) {
	cached, err := r.ListPods(ctx, set.Namespace, string(set.UID))
	if err != nil {
		return nil, err
	}
	if r.answers.lost(client.ObjectKeyFromObject(set)) {
		if err := r.lookAround(ctx, set, cached, now); err != nil {
			return nil, err
		}
		// Listed anew: the watch may have shown a removal meanwhile, and forgotten the
		// answer that hides the Pod in the older list.
		if cached, err = r.ListPods(ctx, set.Namespace, string(set.UID)); err != nil {
			return nil, err
		}
	}
	pods, doubtful := r.writes.merge(set.UID, cached, now)
	for _, entry := range doubtful {
		if err := r.lookUp(ctx, set, entry, now); err != nil {
			return nil, err
		}
	}
	if len(doubtful) > 0 {
		// Laid over anew: a Pod that was looked up in vain, or is somebody else's,
		// must not count in the budgets of the very pass that found it out. And listed
		// anew, since the watch may have forgotten an answer in the meantime that an
		// older list needs.
		if cached, err = r.ListPods(ctx, set.Namespace, string(set.UID)); err != nil {
			return nil, err
		}
		pods, _ = r.writes.merge(set.UID, cached, now)
	}
	return pods, nil
}

// lookUp settles what the cache has contradicted for too long: a lost watch
// event must not freeze the set.
func (r *Reconciler) lookUp(ctx context.Context, set *apps.CloneSet, entry written, now time.Time) error {
	live := &corev1.Pod{}
	err := r.Reader.Get(ctx, client.ObjectKeyFromObject(entry.object), live)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && live.UID != entry.object.UID):
		// Gone: not there until the cache has seen it go, whatever older version
		// the cache still shows.
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
