// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"errors"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/cloneset/write"
	"github.com/usher-dev/usher/internal/kube"
)

// trialRounds bounds how often a pass plans again with the results of trials: if Pods of one class are
// refused, the next plan may choose Pods of another one.
const trialRounds = 4

// trialStands is how long a trial stands if nothing was refused. Each write of the same class renews
// it.
const trialStands = 5 * time.Minute

// firstRetry and lastRetry bound how long a refusal stands before the API server is asked again. It
// doubles with each refusal in a row.
const firstRetry, lastRetry = 5 * time.Second, 2 * time.Minute

// decide makes a plan, and returns how long the planning took. It makes the trials that a plan asks for, and
// plans again: nothing else is done in between. The observation that it returns has their answers.
func (r *Reconciler) decide(ctx context.Context, observed *observation) (*observation, *plan.Plan, time.Duration) {
	before, now := *observed, observed.snapshot.Now
	shared, took := r.shared(keyOf(before.set)), time.Duration(0)
	shared.forgetTrials(now)
	var decided plan.Plan
	for range trialRounds {
		before.snapshot = before.snapshot.WithTrials(shared.trialsAt(now))
		begun := r.Clock.Now()
		decided = r.Plan(before.snapshot)
		took += r.Clock.Since(begun)
		if !r.tryAll(ctx, before.set, decided.Trials) {
			break
		}
	}
	return &before, &decided, took
}

// tryAll makes the trials of a plan. It reports whether there were any, and each of them has a result.
func (r *Reconciler) tryAll(ctx context.Context, set *apps.CloneSet, trials []plan.Attempt) bool {
	known := len(trials) > 0
	for i := range trials {
		known = r.try(ctx, set, &trials[i]) && known
	}
	return known
}

// try makes a trial, and reports whether it has a result: it has none if the Pod has changed or is
// gone.
func (r *Reconciler) try(ctx context.Context, set *apps.CloneSet, attempt *plan.Attempt) bool {
	update := &attempt.Update
	for _, subresource := range write.Subresources(update) {
		err := r.retryUnchanged(ctx, set, update.Pod, func(pod *corev1.Pod) error {
			kind, data := write.Trial(subresource, pod, update, r.Options.KeepFieldManagers, r.Clock.Now())
			if data == nil {
				return nil
			}
			return r.tryPatch(ctx, subresource, pod, client.RawPatch(kind, data))
		})
		if subresource == "resize" {
			err = r.resizeAnswer(ctx, update.Pod, err)
		}
		switch {
		case err == nil, kube.NoDryRun(err):
		case kube.Conflicts(err) || apierrors.IsNotFound(err):
			return false
		default:
			r.shared(keyOf(set)).recordRefusal(attempt.Class, update.Pod.Name, err, r.Clock.Now())
			return true
		}
	}
	r.shared(keyOf(set)).recordAccepted(attempt.Class, r.Clock.Now())
	return true
}

// tryPatch sends a patch as a dry run.
func (r *Reconciler) tryPatch(ctx context.Context, subresource string, pod *corev1.Pod, patch client.Patch) error {
	return r.send("dry_run", func() error {
		if subresource == "" {
			return r.Client.Patch(ctx, named(pod), patch, client.DryRunAll)
		}
		return r.Client.SubResource(subresource).Patch(ctx, named(pod), patch, client.DryRunAll)
	})
}

// mostTrials bounds how many trials are kept for a set: labels of Pods decide how many classes there
// are. maxRefusal bounds what it keeps of an answer, in bytes.
const mostTrials, maxRefusal = 256, 2 << 10

// impossible reports whether a refusal is about the change as such: the API server's own rules say so, or it has
// no such subresource.
func impossible(err error) bool {
	_, no := errors.AsType[*noResize](err)
	return no || kube.RefusesField(err)
}

// refusesUpdate reports whether an answer to a write of an update says that the API server, or a
// webhook of it, does not take it: the Pod is better off as it was.
func refusesUpdate(err error) bool {
	return err != nil && !kube.Conflicts(err) && (kube.Refused(err) || kube.WebhookFailed(err))
}

// learn records what the answer to an action says of Pods like its own. If the Pod has the new revision
// already, only the rest of its update is refused, which is recorded for that Pod too.
func (r *Reconciler) learn(set *apps.CloneSet, o outcome) outcome {
	shared, now, a := r.shared(keyOf(set)), r.Clock.Now(), &o.action
	switch {
	case a.Class == "":
	case o.err == nil:
		if a.Verb != plan.Move {
			shared.recordAccepted(a.Class, now)
		}
	case refusesUpdate(o.err):
		o.refused = true
		shared.recordRefusal(a.Class, a.Pod.Name, o.err, now)
		shared.forgetAccepted()
		if plan.RevisionOf(o.pod) != plan.RevisionOf(a.Pod) {
			shared.recordRefusal(plan.ClassOfRest(o.pod), o.pod.Name, o.err, now)
		}
	}
	return o
}

// trialsAt returns the trials that count at a time.
func (s *sharedState) trialsAt(now time.Time) map[string]plan.Trial {
	s.mu.Lock()
	defer s.mu.Unlock()
	trials := maps.Clone(s.trials)
	maps.DeleteFunc(trials, func(_ string, t plan.Trial) bool { return unused(t, now) })
	return trials
}

// forgetTrials forgets the trials that no plan has needed for long.
func (s *sharedState) forgetTrials(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.trials, func(_ string, t plan.Trial) bool { return unused(t, now) })
}

func unused(t plan.Trial, now time.Time) bool { return now.After(t.Until.Add(lastRetry)) }

func (s *sharedState) recordAccepted(class string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.makeRoom(class)
	s.trials[class] = plan.Trial{Until: now.Add(trialStands)}
}

// forgetAccepted forgets what was accepted: a write that is refused has shown that the API server no longer takes what it
// took in a trial.
func (s *sharedState) forgetAccepted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.trials, func(_ string, t plan.Trial) bool { return t.Refused == "" })
}

// makeRoom forgets all trials if there are too many: the next passes make again the ones that they
// need. The caller holds the lock.
func (s *sharedState) makeRoom(class string) {
	if _, known := s.trials[class]; !known && len(s.trials) >= mostTrials {
		clear(s.trials)
	}
}

func (s *sharedState) recordRefusal(class, pod string, err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.trials[class]
	wait := firstRetry
	if last.Since.IsZero() {
		last.Since = now
	} else {
		wait = min(max(2*last.Wait, firstRetry), lastRetry)
	}
	refused := err.Error()
	if !refusesUpdate(err) {
		refused = "nobody knows: " + refused
	}
	s.makeRoom(class)
	s.trials[class] = plan.Trial{
		Refused: refused[:min(len(refused), maxRefusal)], Impossible: impossible(err), Pod: pod, Since: last.Since, Wait: wait, Until: now.Add(wait),
	}
}
