// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"errors"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/usher-dev/usher/internal/list"
)

const (
	// restFactor is how many times longer than its own work the pause after a pass is, so
	// that passes over one namespace take a quarter of a processor. While Pods end the pause is as
	// long as the work, and passes take half a processor.
	restFactor = 3
	// maxPause bounds the pause.
	maxPause = time.Second / 2
)

// Reconcile makes one pass over a namespace: the name of the request.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (result ctrl.Result, err error) {
	namespace := request.Name
	state, ended := r.stateOf(namespace), false
	if wait := state.shared.pace.Begin(r.clock.Now()); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	r.begin(namespace)
	ctx, release := r.answers.Share(ctx)
	defer release()
	defer func() {
		if !ended {
			r.drop(namespace, state)
		}
	}()
	result, err = r.pass(ctx, namespace, state)
	ended = true
	return result, err
}

// pass makes one pass over a namespace.
func (r *Reconciler) pass(ctx context.Context, namespace string, state *namespaceState) (ctrl.Result, error) {
	kept := state.pass
	before, found, err := r.observe(ctx, namespace, state)
	if err != nil {
		return ctrl.Result{}, err
	}
	decided := r.decide(stage{seen: before, results: found})
	done := r.execute(ctx, kept, decided)
	r.options.Asker.Want(namespace, done.decided.Asks)
	statuses := statusesOf(done)
	done = r.writeStatuses(ctx, done, statuses)
	waits := r.report(ctx, kept, done, statuses)
	kept.remember(before, done, waits)
	r.rest(namespace, state, done)
	return next(done, r.clock.Now())
}

// rest ends a pass. To list a large service takes long, whether one Pod has changed or a thousand. So a pass that took
// long is followed by a longer pause, in which changes gather, unless it has left something to the next. A Pod that ends
// shortens the pause.
func (r *Reconciler) rest(namespace string, state *namespaceState, done stage) {
	now, pause := r.clock.Now(), min(restFactor*done.spent, maxPause)
	if pause > batchDelay && !done.meets(postponed) && !done.stopped {
		state.shared.pace.Rest(now.Add(pause), now.Add(min(done.spent, maxPause)))
	}
	r.keepListings(state.pass)
	r.forgetIdle(namespace, state)
}

// next decides when the next pass is due, and why. What the API server refuses of one object, and what has changed
// during the pass, is tried again in time; another error is retried with back-off.
func next(done stage, now time.Time) (ctrl.Result, error) {
	at := list.Earliest(done.decided.RequeueAt, done.seen.sweepAt, done.seen.backAt)
	var errs []error
	for _, f := range done.failures {
		switch {
		case f.conflicts():
			at = list.Earliest(at, setback{overtaken, f.at}.due())
		case f.refused():
			at = list.Earliest(at, setback{refused, f.at}.due())
		default:
			errs = append(errs, f.err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	for _, s := range done.setbacks {
		at = list.Earliest(at, s.due())
	}
	if at.IsZero() {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: max(at.Sub(now), batchDelay)}, nil
}
