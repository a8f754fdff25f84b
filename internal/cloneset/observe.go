// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// observe reads everything that a plan is made from. It writes nothing.
func (r *Reconciler) observe(
	ctx context.Context, set *apps.CloneSet, spec plan.Spec, known *revisions, own owned, now time.Time,
) (*plan.Snapshot, error) {
	read := plan.ReadPods(own.pods, r.memory(keyOf(set)).podInfos)
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
	going, err := r.goingNodes(ctx, &spec)
	if err != nil {
		return nil, err
	}
	return &plan.Snapshot{
		Now: now, Set: set.Name,
		ExcludePreparingDelete: set.Labels[apps.LabelScalingExcludePreparingDelete] == "true",
		Spec:                   spec,
		Current:                known.current, Update: known.update, Revisions: known.byHash,
		Pods: own.pods, PodInfos: read, Nodes: nodes, GoingNodes: going, Deferred: r.memory(keyOf(set)).deferrals.observed(own.pods),
		// What was read after the pass began counts from when it was read, not earlier.
		Drained: r.drains.of(read, r.Clock.Now()),
		Claims:  own.claims, DeletedInstances: r.deletions.of(set, own.pods, own.claims), ReleasedInstances: released,
		Starts: r.Options.Parallel, NoResize: r.Options.NoResize,
	}, nil
}

// ownPods returns the set's Pods. It relists them first if an answer was lost.
func (r *Reconciler) ownPods(ctx context.Context, set *apps.CloneSet, now time.Time) ([]*corev1.Pod, error) {
	if r.sets.isStale(keyOf(set)) {
		if err := r.relistAll(ctx, set, now); err != nil {
			return nil, err
		}
	}
	return listOwned(ctx, r.Reader, r.pods, r.ListPods, set, now)
}
