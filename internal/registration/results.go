// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// stage is the state of a pass between two of its steps: its observation, the last plan, and the results so far. A step
// takes a stage and returns the next one.
type stage struct {
	seen    *observation
	decided plan.Plan
	// unlisted and departures are the last plan's, even if that plan only decided which Pods to delete.
	unlisted   plan.Unlisted
	departures plan.Departures
	results
}

// with is the stage after a step with these results.
func (s stage) with(more results) stage {
	s.results = s.and(more)
	return s
}

// seeing is the stage of a pass that knows more.
func (s stage) seeing(seen *observation) stage {
	s.seen = seen
	return s
}

// results is what came of steps of a pass.
type results struct {
	// stopped means that a failure has ended the pass early: nothing else was decided or written.
	stopped bool
	// failures are what the API server did not answer or do.
	failures []failure
	// setbacks are the reasons for another pass.
	setbacks []setback
	// due are targets that were written to, or could not be listed.
	due []plan.Target
	// batches are the changes that registries were sent, made those that were read back.
	batches []batch
	made    []madeChanges
	// patches are the patches of Pods, also those that failed or were not begun in time; firstPatch is the Pod of the
	// first one that was not begun.
	patches    []patchResult
	firstPatch string
	// deletions are those of drained Pods.
	deletions []deletion
	// said is what Usher has said of evictions, by their UIDs.
	said map[types.UID]plan.Response
	// troubles are what could not be read, and what Pods say that makes no sense.
	troubles []trouble
	// spent is how long listing and planning have taken.
	spent time.Duration
}

// and are the results of two steps.
func (a results) and(b results) results { return merge(a, b) }

// merge are the results of several steps, in their order.
func merge(steps ...results) (all results) {
	for i := range steps {
		s := &steps[i]
		all.stopped = all.stopped || s.stopped
		all.failures, all.setbacks = append(all.failures, s.failures...), append(all.setbacks, s.setbacks...)
		all.due, all.batches = append(all.due, s.due...), append(all.batches, s.batches...)
		all.made, all.patches = append(all.made, s.made...), append(all.patches, s.patches...)
		all.deletions, all.troubles = append(all.deletions, s.deletions...), append(all.troubles, s.troubles...)
		for uid, said := range s.said {
			if all.said == nil {
				all.said = map[types.UID]plan.Response{}
			}
			all.said[uid] = said
		}
		all.firstPatch, all.spent = cmp.Or(s.firstPatch, all.firstPatch), all.spent+s.spent
	}
	return all
}

// failure is a request to the API server that failed.
type failure struct {
	// about is the object that was written; nil if something was read.
	about client.Object
	err   error
	at    time.Time
}

// conflicts reports whether the object has changed during the pass: the next one decides again.
func (f failure) conflicts() bool { return f.about != nil && apierrors.IsConflict(f.err) }

// refused reports whether the API server refuses what a write makes of one object. That must not delay others, as an
// error of the pass would: an event names the object, and it is tried again.
func (f failure) refused() bool { return f.about != nil && !f.conflicts() && kube.Refused(f.err) }

// failed is the result of a write that may have failed.
func (r *Reconciler) failed(about client.Object, err error) results {
	if err == nil {
		return results{}
	}
	return results{failures: []failure{{about: about, err: err, at: r.clock.Now()}}}
}

// stop is the result of a failure that ends the pass.
func (r *Reconciler) stop(err error) results {
	ended := r.failed(nil, err)
	ended.stopped = true
	return ended
}

// cause is why another pass follows.
type cause int

const (
	// postponed: patches of Pods were not begun in time.
	postponed cause = iota
	// raced: a Pod that has drained has changed since.
	raced
	// overtaken: somebody has changed an object during the pass, or the caches did not show it as it is. The event of
	// that change may already be behind us.
	overtaken
	// refused: the API server or a registry refuses something, or does not show it.
	refused
	// held: a registry takes no call or no change, or the API server takes no key of a Pod, for a time that is known.
	held
)

// retries are how long after each cause the next pass follows.
var retries = map[cause]time.Duration{
	postponed: batchDelay, raced: batchDelay, overtaken: soon, refused: refusedRetry, held: 0,
}

// setback is something that a pass could not do, for which another one follows.
type setback struct {
	cause cause
	at    time.Time
}

// due is when the pass follows.
func (s setback) due() time.Time { return s.at.Add(retries[s.cause]) }

// setBack is the result of a step that has met a setback now.
func (r *Reconciler) setBack(cause cause) results {
	return results{setbacks: []setback{{cause: cause, at: r.clock.Now()}}}
}

// heldFor is the result of a step that has to wait for so long.
func (r *Reconciler) heldFor(wait time.Duration) results {
	return results{setbacks: []setback{{cause: held, at: r.clock.Now().Add(wait)}}}
}

// meets reports whether a setback has that cause.
func (a results) meets(c cause) bool {
	return slices.ContainsFunc(a.setbacks, func(s setback) bool { return s.cause == c })
}

// batch is what a registry was sent for a target.
type batch struct {
	// changes are without those that wait for their turn.
	changes plan.Changes
	// failed are the changes that the registry refused, by entry ID. rest is why the others failed; nil if they did not.
	failed map[string]error
	rest   error
}

// madeChanges are changes of a target that was read back: what it listed before and after, and what failed.
type madeChanges struct {
	plan.Changes
	before, after plan.Listing
	failed        map[string]error
}

// patchResult is what came of the patch of a Pod.
type patchResult struct {
	patch *plan.PodPatch
	// sent are the parts of the patch that were made.
	sent []*plan.PodPatch
	// pod is the Pod as the whole patch has left it; nil if a part of it was not made.
	pod *corev1.Pod
	// keys are the keys of users' choice that were refused.
	keys *refusal
	// gone means that there is no such Pod. No other pass has to follow.
	gone bool
}

// unrecorded are the targets of a Pod that is not patched as planned: what its record and its condition say of them
// may be old.
func (p patchResult) unrecorded() []plan.Target {
	if p.isSettled() {
		return nil
	}
	return p.patch.Targets
}

// isSettled reports whether the patch was made, or something else than the next pass makes it.
func (p patchResult) isSettled() bool { return p.pod != nil || p.keys != nil || p.gone }

// unrecorded are the Registrations of Pods that are not patched as planned: their conditions may wrongly say that nothing
// is left to do.
func (a results) unrecorded() map[string]bool {
	names := map[string]bool{}
	for _, p := range list.Only(a.patches, func(p patchResult) bool { return !p.isSettled() }) {
		for _, name := range p.patch.Concerns {
			names[name] = true
		}
	}
	return names
}

// deletion is what came of the deletion of a drained Pod.
type deletion struct {
	plan.Finish
	err error
	// ended means that the pass itself has ended.
	ended bool
	at    time.Time
}

// trouble is something that only people can mend, or that is tried again: it becomes an event about a Pod, or a line of
// the log.
type trouble struct {
	pod     *corev1.Pod
	message string
	// err becomes a line of the log; without it an event has the message.
	err error
}

// timed measures a pass's own work: listing and planning, not waiting for the API server.
func timed[T any](r *Reconciler, step func() T) (T, results) {
	began := r.clock.Now()
	value := step()
	return value, results{spent: r.clock.Now().Sub(began)}
}

// decide plans from what is known.
func (r *Reconciler) decide(s stage) stage {
	decided, took := timed(r, func() plan.Plan { return plan.Make(s.seen.snapshot) })
	s.decided, s.unlisted, s.departures = decided, decided.Unlisted, decided.Departures
	return s.with(took)
}

// isOver reports whether the pass itself has ended, with a call of it.
func isOver(ctx context.Context) bool { return ctx.Err() != nil }
