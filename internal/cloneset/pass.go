// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
)

// invalidError means that no plan can be made for a set until someone fixes it.
// Conditions and one event report it.
type invalidError struct {
	error
	// reason is that of the conditions.
	reason string
	// retry means that the cause is not the spec alone.
	retry bool
}

func (e *invalidError) Unwrap() error { return e.error }

// invalid wraps a spec that admission should have refused: only the user can fix it.
func invalid(err error) error { return &invalidError{error: err, reason: ReasonSpecInvalid} }

// unusable wraps a template that no revision can be made of.
func unusable(err error) error {
	return &invalidError{error: err, reason: ReasonRevisionUnusable, retry: true}
}

// A pass over a large set reads all its Pods. One for each Pod that returns would take more processor time
// than the writes. So passes begin at least pauseShare times as far apart as it takes to plan one, which is a
// third of what it computes, but none waits for longer than longestPause. A pause of less than shortestPause is
// not worth a timer.
const pauseShare, shortestPause, longestPause = 30, 10 * time.Millisecond, 100 * time.Millisecond

// Reconcile makes one pass over a set.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	start := r.Clock.Now()
	if pause := r.passState(req.NamespacedName).nextPass.Sub(start); pause > shortestPause {
		return reconcile.Result{RequeueAfter: pause}, nil
	}
	set, err := r.readSet(ctx, req.NamespacedName)
	if set == nil {
		if err == nil {
			r.forget(req.NamespacedName)
		}
		return reconcile.Result{}, err
	}
	result, err := r.pass(ctx, set)
	result.Priority = new(0) // its time ahead is over
	r.metrics.passes.Observe(r.Clock.Since(start).Seconds())
	kept := r.passState(req.NamespacedName)
	kept.stale = kept.stale || unanswered(err)
	if err != nil {
		kept.nextPass = time.Time{} // to pause would end the back-off
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return reconcile.Result{}, nil // everything in the namespace is deleted, the set too
	}
	return result, err
}

// pass makes one pass over a set that has been read.
func (r *Reconciler) pass(ctx context.Context, set *apps.CloneSet) (reconcile.Result, error) {
	now := r.Clock.Now()
	snapshot, known, err := r.prepareAll(ctx, set, now)
	if bad, ok := errors.AsType[*invalidError](err); ok {
		r.shared(keyOf(set)).returns.shut(&plan.Plan{})
		return reconcile.Result{}, r.reportInvalid(ctx, set, bad, now)
	}
	if err == nil {
		set, err = r.syncFinalizer(ctx, set)
	}
	if set == nil || err != nil {
		return reconcile.Result{}, err
	}
	decided, took := r.decide(ctx, set, snapshot)
	kept := r.passState(keyOf(set))
	kept.failures = decided.Failures
	kept.nextPass = now.Add(min(pauseShare*took, longestPause))
	outcomes := r.execute(ctx, set, snapshot, &decided)
	pulled := r.pullImages(ctx, set, &decided)
	kept.stale = kept.stale || slices.ContainsFunc(outcomes, func(o outcome) bool { return unanswered(o.err) })
	revisionsPruned := r.pruneRevisions(ctx, set, known, snapshot.Pods)
	left := afterwards(snapshot, outcomes)
	deferredUntil := r.noteDeferrals(set, snapshot, left, outcomes)
	counts, blocked := plan.Review(left, decided.Waits...)
	// Nothing was to be done and nothing is outstanding: no Pod is terminating either.
	idle := counts.RolledOut && len(decided.Actions) == 0 && counts.Replicas == len(left.Pods)
	kept.podInfos = left.PodInfos
	if idle {
		kept.podInfos, kept.revisions = nil, nil // they would retain versions that the cache no longer holds
	}
	r.metrics.passed(set, decided.Actions, blocked, outcomes, left)
	next, due := nextStatus(set, left, counts, known, find(&decided, blocked, outcomes))
	tellAt, written := r.tell(ctx, set, &next, outcomes, idle, now)
	namesPruned := r.prunePodsToDelete(ctx, set, &decided, outcomes)
	for _, at := range []time.Time{
		due, tellAt, counts.ReportAt, deferredUntil, kept.adoptionsAt(), longWaitAt(blocked, now),
		r.pods.verifyAt(set.UID), r.claims.verifyAt(set.UID),
	} {
		decided.RequeueAt = list.Earliest(decided.RequeueAt, at)
	}
	r.recordEvents(set, &decided, blocked, now)
	r.logPass(ctx, set, &next, blocked, outcomes, now)
	if written == nil {
		r.recordProgress(set, &next)
	}
	ended := r.endDeletion(ctx, set, left, &decided)
	r.shared(keyOf(set)).returns.shut(&decided)
	return after(&decided, outcomes, now, errors.Join(pulled, revisionsPruned, written, namesPruned, ended))
}

// prepare ensures that a plan can be made, and reads its input. Only the steps before
// observe write; observe only reads.
func (r *Reconciler) prepare(ctx context.Context, set *apps.CloneSet, now time.Time) (*plan.Snapshot, *revisions, error) {
	if set.DeletionTimestamp != nil {
		return r.prepareDeletion(ctx, set, now)
	}
	spec, err := plan.SpecOf(set)
	if err != nil {
		return nil, nil, invalid(err)
	}
	s := &plan.Snapshot{Now: now, Set: set.Name, Spec: spec, NamespaceEnds: r.passState(keyOf(set)).namespaceEnds == set.UID}
	if err := r.claimOwnership(ctx, set, s); err != nil {
		return nil, nil, err
	}
	known, err := r.syncRevisions(ctx, set)
	if err != nil {
		return nil, nil, err
	}
	if err := r.observe(ctx, set, s, known); err != nil {
		return nil, nil, err
	}
	r.checkTemplates(ctx, set, s)
	return s, known, nil
}

// reportInvalid reports what is wrong, and touches nothing.
func (r *Reconciler) reportInvalid(ctx context.Context, set *apps.CloneSet, bad *invalidError, now time.Time) error {
	next := *set.Status.DeepCopy()
	next.ObservedGeneration = set.Generation
	found := plan.Problem{Reason: bad.reason, Message: bad.Error()}
	if !holdsFinding(&next, apps.ConditionFailedUpdate, found) {
		r.warn(set, bad.reason, "Validate", "%v", bad)
	}
	setCondition(&next, apps.ConditionFailedScale, found, now)
	setCondition(&next, apps.ConditionFailedUpdate, found, now)
	err := r.writeStatus(ctx, set, next)
	if err == nil && bad.retry {
		err = bad
	}
	return err
}

// after computes when the next pass is due. A failed write, and a failure after the
// actions (late), is retried with back-off; an action that met a changed Pod is decided
// again at once.
func after(decided *plan.Plan, outcomes []outcome, now time.Time, late error) (reconcile.Result, error) {
	if late != nil {
		return reconcile.Result{}, late
	}
	again := decided.More || slices.ContainsFunc(outcomes, outcome.conflicted)
	failures := slices.DeleteFunc(slices.Clone(outcomes), func(o outcome) bool { return !o.failed() })
	at := decided.RequeueAt
	if len(failures) > 0 {
		if i := slices.IndexFunc(failures, func(o outcome) bool { return !kube.Refused(o.err) }); i >= 0 {
			err := fmt.Errorf("%d of %d writes failed, one of them: %w", len(failures), len(outcomes), failures[i].err)
			return reconcile.Result{}, err
		}
		// A condition and an event report it; only a change of something else fixes it. Whatever
		// was not refused continues.
		at = list.Earliest(at, now.Add(refusedFor))
	}
	refused := slices.ContainsFunc(outcomes, func(o outcome) bool { return o.refused }) // its Pod comes back
	if refused || again && len(failures) == 0 {
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	}
	if at.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(at.Sub(now), time.Millisecond)}, nil
}

// afterwards returns the snapshot as a pass left it: Pods as the API server answered,
// created Pods added, deleted Pods removed. The status describes this snapshot, so a step
// costs one status write, not a second one once the cache has caught up.
func afterwards(s *plan.Snapshot, outcomes []outcome) *plan.Snapshot {
	left := *s
	newest := map[types.UID]*corev1.Pod{} // nil if it was deleted
	var made []*corev1.Pod
	for _, o := range outcomes {
		switch {
		case o.action.Verb == plan.Delete && o.err == nil:
			newest[o.action.Pod.UID] = nil
		case o.pod == nil:
		case o.action.Verb == plan.Create:
			made = append(made, o.pod)
		default:
			newest[o.action.Pod.UID] = o.pod
		}
	}
	left.Pods = make([]*corev1.Pod, 0, len(s.Pods)+len(made))
	for _, pod := range s.Pods {
		// A Pod that returned beside the previous pass may have changed since then.
		if answered, ok := newest[pod.UID]; ok && (answered == nil || !kube.Newer(pod, answered)) {
			pod = answered
		}
		if pod != nil {
			left.Pods = append(left.Pods, pod)
		}
	}
	left.Pods = append(left.Pods, made...)
	left.PodInfos = plan.ReadPods(left.Pods, s.PodInfos)
	return &left
}

// observe reads everything else that a plan is made from. It writes nothing.
func (r *Reconciler) observe(ctx context.Context, set *apps.CloneSet, s *plan.Snapshot, known *revisions) error {
	last := ""
	for _, pod := range s.PodInfos {
		if pod.Revision() == last {
			continue
		}
		last = pod.Revision()
		if err := r.findRevision(ctx, set, known, last); err != nil {
			return err
		}
	}
	var failed [3]error
	s.ReleasedInstances, failed[0] = r.releasedInstances(ctx, set, s.Pods, s.Claims)
	s.Nodes, failed[1] = r.nodeLabels(ctx, s.Spec.Spread, s.Pods)
	s.GoingNodes, failed[2] = r.goingNodes(ctx, &s.Spec)
	kept, shared := r.passState(keyOf(set)), r.shared(keyOf(set))
	s.Starts, s.NoResize = r.starts(len(s.Pods)), r.Options.NoResize
	s.ExcludePreparingDelete = set.Labels[apps.LabelScalingExcludePreparingDelete] == "true"
	s.Current, s.Update, s.Revisions, s.Changes = known.current, known.update, known.byHash, known.changes
	s.Failures = kept.failures
	s.Deferred, s.DeletedInstances = kept.deferrals.observed(s.Pods), shared.deletedInstances(set, s.Pods, s.Claims)
	shared.forgetDeletionsExcept(s.DeletedInstances)
	// The present counts, not the beginning of the pass: these Pods were read later.
	s.Drained = shared.recordDrains(s.PodInfos, r.Clock.Now())
	return errors.Join(failed[:]...)
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

// prunePodsToDelete removes the names of deleted Pods from spec.scaleStrategy.podsToDelete. A concurrent
// edit by the user wins; the next pass prunes then.
func (r *Reconciler) prunePodsToDelete(ctx context.Context, set *apps.CloneSet, decided *plan.Plan, outcomes []outcome) error {
	done, err := r.doneWith(ctx, set, decided.PrunePodsToDelete, outcomes)
	if err != nil || len(done) == 0 {
		return err
	}
	set = r.shared(keyOf(set)).newest(set)
	left := slices.DeleteFunc(slices.Clone(set.Spec.ScaleStrategy.PodsToDelete), func(name string) bool { return slices.Contains(done, name) })
	change := map[string]any{"spec": map[string]any{"scaleStrategy": map[string]any{"podsToDelete": left}}}
	pruned, err := mergeVersion(ctx, r, "", set, change)
	if err != nil {
		return fmt.Errorf("prune podsToDelete: %w", err)
	}
	r.shared(keyOf(pruned)).keepAnswer(pruned)
	r.normal(set, "PodsToDeleteTrimmed", "Trim", "removed the names of Pods that are gone from scaleStrategy.podsToDelete: %s", strings.Join(done, ", "))
	return nil
}

// doneWith returns the names whose Pods are certainly gone: a delete may have failed, and
// the cache may not show a new Pod yet.
func (r *Reconciler) doneWith(ctx context.Context, set *apps.CloneSet, names []string, outcomes []outcome) ([]string, error) {
	var done []string
	for _, name := range names {
		i := slices.IndexFunc(outcomes, func(o outcome) bool { return o.action.Pod != nil && o.action.Pod.Name == name })
		if i >= 0 {
			if outcomes[i].err == nil {
				done = append(done, name)
			}
			continue
		}
		pod := &corev1.Pod{}
		err := r.Reader.Get(ctx, client.ObjectKey{Namespace: set.Namespace, Name: name}, pod)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("look up Pod %s of podsToDelete: %w", name, err)
		}
		if err != nil || pod.DeletionTimestamp != nil || !metav1.IsControlledBy(pod, set) {
			done = append(done, name)
		}
	}
	return done, nil
}
