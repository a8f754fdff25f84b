// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
// than the writes. So after planning for d, the next pass begins pauseShare × d later, but never later than
// longestPause. Planning is about a third of a pass's CPU. A pause below shortestPause is not worth a timer.
const pauseShare, shortestPause, longestPause = 30, 10 * time.Millisecond, 100 * time.Millisecond

// Reconcile makes one pass over a set.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	start := r.Clock.Now()
	if pause := r.passState(req.NamespacedName).pace.Begin(start); pause > 0 {
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
	r.metrics.passes.Observe(r.Clock.Since(start).Seconds())
	kept := r.passState(req.NamespacedName)
	kept.stale = kept.stale || kube.Unanswered(err)
	if err != nil {
		kept.pace.Reset() // no pause after an error: a RequeueAfter would reset the back-off
	}
	if kube.NamespaceEnds(err) {
		return reconcile.Result{}, nil // everything in the namespace is deleted, the set too
	}
	result.Priority = new(0) // drop the priority that a Pod event gave this set
	return result, err
}

// pass makes one pass over a set that has been read.
func (r *Reconciler) pass(ctx context.Context, set *apps.CloneSet) (reconcile.Result, error) {
	now := r.Clock.Now()
	observed, err := r.observe(ctx, set, now)
	if observed == nil || err != nil {
		return reconcile.Result{}, r.reportInvalid(ctx, set, err, now)
	}
	before, decided, took := r.decide(ctx, observed)
	done := r.execute(ctx, before, decided)
	after := before.With(done)
	status := statusOf(after, decided, done)
	r.remember(before, decided, done, after, status.idle, took)
	reported := r.report(ctx, after, decided, done, status)
	finished := r.finish(ctx, after, decided, done)
	return next(decided, after, done, reported, finished)
}

// remember keeps what the next pass needs of this one.
func (r *Reconciler) remember(
	before *observation, decided *plan.Plan, done *results, after *observation, idle bool, took time.Duration,
) {
	kept := r.passState(keyOf(before.set))
	next := before.snapshot.Now.Add(min(pauseShare*took, longestPause))
	kept.pace.Rest(next, next)
	kept.failures = decided.Failures
	kept.deferrals = after.snapshot.Deferred
	kept.pullsGivenUp = done.pulls.givenUp
	if done.pulls.refused() {
		kept.pullsRefusedUntil = done.pulls.refusedUntil
	}
	if slices.ContainsFunc(done.outcomes, outcome.namespaceEnds) {
		kept.namespaceEnds = before.set.UID
	}
	kept.stale = kept.stale || slices.ContainsFunc(done.outcomes, func(o outcome) bool { return kube.Unanswered(o.err) })
	kept.podInfos = after.snapshot.PodInfos
	if idle {
		kept.podInfos, kept.revisions = nil, nil // they would retain versions that the cache no longer holds
	}
}

// reportInvalid reports an error of observe that means that no plan can be made: the status and an event say
// what is wrong, and nothing else is touched. It returns the error to retry; nil if only the user can fix it.
func (r *Reconciler) reportInvalid(ctx context.Context, set *apps.CloneSet, err error, now time.Time) error {
	bad, ok := errors.AsType[*invalidError](err)
	if !ok {
		return err
	}
	r.shared(keyOf(set)).executor.Close(false)
	next := *set.Status.DeepCopy()
	next.ObservedGeneration = set.Generation
	found := plan.Problem{Reason: bad.reason, Message: bad.Error()}
	if !holdsFinding(&next, apps.ConditionFailedUpdate, found) {
		r.warn(set, bad.reason, "Validate", "%v", bad)
	}
	setCondition(&next, apps.ConditionFailedScale, found, now)
	setCondition(&next, apps.ConditionFailedUpdate, found, now)
	err = r.writeStatus(ctx, set, next)
	if err == nil && bad.retry {
		err = bad
	}
	return err
}

// next decides when the next pass is due, and why. An error is retried with back-off. An action that met a
// changed Pod is decided again at once.
func next(
	decided *plan.Plan, after *observation, done *results, reported reported, finished finished,
) (reconcile.Result, error) {
	if err := errors.Join(done.err, reported.err, finished.err); err != nil {
		return reconcile.Result{}, err
	}
	failures := list.Only(done.outcomes, outcome.failed)
	for _, o := range failures {
		if !kube.Refused(o.err) {
			err := fmt.Errorf("%d of %d writes failed, one of them: %w", len(failures), len(done.outcomes), o.err)
			return reconcile.Result{}, err
		}
	}
	// If the update of a Pod was refused, that Pod comes back in the next pass.
	refused := slices.ContainsFunc(done.outcomes, func(o outcome) bool { return o.refused })
	again := decided.More || done.more() || finished.more
	if refused || again && len(failures) == 0 {
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	}
	now := after.snapshot.Now
	at := list.Earliest(decided.RequeueAt, after.adoptAt, after.deferredUntil(), reported.due, finished.verifyAt)
	if len(failures) > 0 {
		// A condition and an event report the refused writes; only a change of something else fixes them.
		at = list.Earliest(at, now.Add(refusedFor))
	}
	if at.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(at.Sub(now), time.Millisecond)}, nil
}
