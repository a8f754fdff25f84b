// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
)

// observation is what a pass knows of a set at one moment: before its actions, or after them. It never
// changes.
type observation struct {
	set       *apps.CloneSet
	snapshot  *plan.Snapshot
	revisions *revisions
	// adoptAt is when the API server is next asked to adopt or release an object that it refused; zero
	// if there is none.
	adoptAt time.Time
}

// observe reads everything that a plan is made from. Before that it makes the writes without which there
// is no plan: it adopts and releases objects, and creates the revision and the finalizer. It returns nil if the
// set is gone.
func (r *Reconciler) observe(ctx context.Context, set *apps.CloneSet, now time.Time) (*observation, error) {
	pulling, err := r.ListPods(ctx, set.Namespace, pullsKey(string(set.UID)))
	if err != nil {
		return nil, err
	}
	observe := r.observeLive
	if set.DeletionTimestamp != nil {
		observe = r.observeDeleted
	}
	observed, err := observe(ctx, set, pulling, now)
	if err != nil {
		return nil, err
	}
	if observed.set, err = r.syncFinalizer(ctx, set); err != nil || observed.set == nil {
		return nil, err
	}
	return observed, nil
}

// observeLive observes a set that is not being deleted.
func (r *Reconciler) observeLive(
	ctx context.Context, set *apps.CloneSet, pulling []*corev1.Pod, now time.Time,
) (*observation, error) {
	spec, err := plan.SpecOf(set)
	if err != nil {
		return nil, invalid(err)
	}
	own, err := r.claimOwnership(ctx, set, now)
	if err != nil {
		return nil, err
	}
	known, err := r.syncRevisions(ctx, set, own.podInfos)
	if err != nil {
		return nil, err
	}
	released, nodes, going, err := r.surroundings(ctx, set, &spec, own)
	if err != nil {
		return nil, err
	}
	kept, shared := r.passState(keyOf(set)), r.shared(keyOf(set))
	starts := r.starts(len(own.pods))
	deleted := shared.deletedInstances(set, own.pods, own.claims)
	shared.forgetDeletionsExcept(deleted)
	// The present counts, not the beginning of the pass: these Pods were read later.
	drained := shared.recordDrains(own.podInfos, r.Clock.Now())
	template, claim := r.checkTemplates(ctx, set, known.update, own.podInfos)
	pulls, err := r.pullsOf(set, pulling), error(nil)
	if pulls.Possible && !spec.Pull.Off {
		pulls.Listed, err = r.listImages(ctx, known.update, own.podInfos)
	}
	return &observation{set: set, revisions: known, adoptAt: kept.adoptAt(), snapshot: &plan.Snapshot{
		Now: now, Set: set.Name, Spec: spec,
		NamespaceEnds:          kept.namespaceEnds == set.UID,
		ExcludePreparingDelete: set.Labels[apps.LabelScalingExcludePreparingDelete] == "true",
		Starts:                 starts, NoResize: r.Options.NoResize,

		Pods: own.pods, PodInfos: own.podInfos, Claims: own.claims,
		ReleasedInstances: released, DeletedInstances: deleted, Drained: drained,
		Deferred: kept.deferrals.observed(own.pods), Failures: kept.failures,

		Current: known.current, Update: known.update, Revisions: known.byHash, Changes: known.changes,
		UpdateRefused: template.message, RefusedUntil: template.until,
		ClaimsRefused: claim.message, ClaimsRefusedUntil: claim.until,

		Nodes: nodes, GoingNodes: going, Pulls: pulls,
	}}, err
}

// surroundings reads what a plan needs of objects that the set does not own: which instances have a released
// Pod, the labels of nodes, and the nodes that Pods are to leave.
func (r *Reconciler) surroundings(ctx context.Context, set *apps.CloneSet, spec *plan.Spec, own *owned) (
	released map[string]bool, nodes map[string]map[string]string, going map[string][]corev1.Taint, err error,
) {
	var failed [3]error
	released, failed[0] = r.releasedInstances(ctx, set, own.pods, own.claims)
	nodes, failed[1] = r.nodeLabels(ctx, spec.Spread, own.pods)
	going, failed[2] = r.goingNodes(ctx, spec)
	return released, nodes, going, errors.Join(failed[:]...)
}

// With returns the observation as the results of a pass left it: Pods as the API server answered,
// created Pods added, deleted Pods removed. The status describes this observation, so a step costs one
// status write, not a second one once the cache has caught up.
func (o *observation) With(done *results) *observation {
	newest := map[types.UID]*corev1.Pod{} // nil if it was deleted
	var created []*corev1.Pod
	for _, result := range done.outcomes {
		switch {
		case result.action.Verb == plan.Delete && result.err == nil:
			newest[result.action.Pod.UID] = nil
		case result.pod == nil:
		case result.action.Verb == plan.Create:
			created = append(created, result.pod)
		default:
			newest[result.action.Pod.UID] = result.pod
		}
	}
	pods := make([]*corev1.Pod, 0, len(o.snapshot.Pods)+len(created))
	for _, pod := range o.snapshot.Pods {
		// A Pod that was written in the background after the previous pass may have changed since then.
		if answered, ok := newest[pod.UID]; ok && (answered == nil || !kube.Newer(pod, answered)) {
			pod = answered
		}
		if pod != nil {
			pods = append(pods, pod)
		}
	}
	after := *o
	after.snapshot = o.snapshot.After(append(pods, created...), deferralsAfter(o.snapshot, done.outcomes, done.at))
	return &after
}

// deferredUntil returns when the first deferred deletion is due again; zero if there is none.
func (o *observation) deferredUntil() (first time.Time) {
	for _, deferral := range o.snapshot.Deferred {
		first = list.Earliest(first, deferral.Until)
	}
	return first
}

// ownPods returns the set's Pods. It relists them first if an answer was lost.
func (r *Reconciler) ownPods(ctx context.Context, set *apps.CloneSet, now time.Time) ([]*corev1.Pod, error) {
	if r.passState(keyOf(set)).stale {
		if err := r.relistAll(ctx, set, now); err != nil {
			return nil, err
		}
	}
	return listOwned(ctx, r.Reader, r.pods, r.ListPods, set, now)
}
