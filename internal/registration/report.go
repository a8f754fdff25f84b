// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registries"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Keys of log lines; controller-runtime's lines have them, too.
const (
	keyNamespace    = "namespace"
	keyRegistration = "registration"
	keyRegistry     = registries.LogKey
	keyPod          = "pod"
)

// report reports a pass, each thing once: the lines of the log, the events and the metrics that follow from what the pass
// has found and done. It returns the open waits.
func (r *Reconciler) report(ctx context.Context, kept *passState, done stage, statuses []status) map[plan.Waiting]time.Time {
	r.reportOrphans(done.seen.snapshot.Namespace, kept.sweeps, done.seen.sweeps)
	r.countBatches(done.batches)
	for i := range done.made {
		logChanges(ctx, &done.made[i])
	}
	for _, p := range done.patches {
		for _, part := range p.sent {
			r.reportPatch(ctx, part)
		}
	}
	for i := range done.deletions {
		r.reportDeletion(ctx, &done.deletions[i])
	}
	r.reportFailures(ctx, done.failures)
	r.reportTroubles(ctx, done.troubles)
	if done.stopped {
		return nil
	}
	r.showGauges(done.seen.snapshot.Namespace, statuses)
	r.announce(done)
	return logWaits(ctx, kept.waits, done)
}

// countBatches counts what registries were sent, and what they refused. Conflicts are no errors, and outages are
// counted where they are noticed.
func (r *Reconciler) countBatches(batches []batch) {
	for _, b := range batches {
		name := b.changes.Target.Registry
		if errors.Is(b.rest, registry.ErrPermanent) {
			r.metrics.failed(name, b.rest)
		}
		for _, err := range b.failed {
			if errors.Is(err, registry.ErrPermanent) || errors.Is(err, registry.ErrForeign) {
				r.metrics.failed(name, registry.Permanent(err))
			}
		}
		if b.rest == nil {
			r.metrics.removed.WithLabelValues(name).Add(float64(len(b.changes.Orphans)))
		}
	}
}

// showGauges shows what the pass has found of each Registration.
func (r *Reconciler) showGauges(namespace string, statuses []status) {
	var shown []gauge
	for i := range statuses {
		if s := &statuses[i]; !vanished(s.Registration) {
			shown = append(shown, gaugesOf(namespace, s.Outcome, s.next)...)
		}
	}
	r.metrics.registrations.Put(namespace, metricsOf(shown))
}

// reportDeletion reports the deletion of a drained Pod.
func (r *Reconciler) reportDeletion(ctx context.Context, d *deletion) {
	switch {
	case apierrors.IsNotFound(d.err), apierrors.IsConflict(d.err):
	case d.err == nil && d.Undrained:
		r.announcer.warn(d.Pod, eventFinished, actionDelete, fmt.Sprintf(
			"%s gives the Pod until %s, and %s: Usher deletes it before callers have had their time.",
			d.Request.By, d.Request.Deadline.UTC().Format(time.RFC3339), d.Because))
	case d.err == nil:
		r.announcer.say(d.Pod, eventFinished, actionDelete, fmt.Sprintf(
			"The Pod has drained for %s, and %s: Usher deletes it.", d.Request.By, d.Because))
	case !d.ended:
		log.FromContext(ctx).Error(d.err, "Cannot delete a Pod that has drained", keyPod, d.Pod.Name)
		r.announcer.warn(d.Pod, eventRefused, actionDelete, "The Pod has drained, and Usher cannot delete it: "+d.err.Error())
	}
}

// reportFailures reports what the API server refuses of single objects. The pass fails with other failures.
func (r *Reconciler) reportFailures(ctx context.Context, failures []failure) {
	for _, f := range failures {
		if f.refused() {
			log.FromContext(ctx).Error(f.err, "The API server refuses a write", "object", f.about.GetName())
			r.announcer.warn(f.about, eventRefused, actionWrite, f.err.Error())
		}
	}
}

// reportTroubles reports what could not be read, and what Pods say that makes no sense.
func (r *Reconciler) reportTroubles(ctx context.Context, troubles []trouble) {
	for _, t := range troubles {
		switch {
		case t.err == nil:
			r.announcer.warn(t.pod, eventNamesInvalid, actionRegister, t.message)
		case t.pod != nil:
			log.FromContext(ctx).Error(t.err, t.message, keyPod, t.pod.Name)
		default:
			log.FromContext(ctx).Error(t.err, t.message)
		}
	}
}

// logWaits logs each wait that begins or ends, and returns the open ones, so that a pass without changes logs nothing.
func logWaits(ctx context.Context, before map[plan.Waiting]time.Time, done stage) map[plan.Waiting]time.Time {
	logger, open, now := log.FromContext(ctx), map[plan.Waiting]time.Time{}, done.seen.snapshot.Now
	for _, w := range done.decided.Waiting {
		key := plan.Waiting{Registration: w.Registration, Pod: w.Pod, Gate: w.Gate, Key: w.Key, Registry: w.Registry}
		since, known := before[key]
		if !known && w.Reason == plan.ReasonNotAsked {
			continue // The next pass knows more.
		}
		if !known {
			since = cmp.Or(w.Since, now)
			aboutWait(logger, w).Info("Wait begins", "reason", w.Reason, "message", w.Message)
		}
		open[key] = since
	}
	for _, w := range slices.SortedFunc(maps.Keys(before), plan.CompareWaiting) {
		if _, still := open[w]; !still {
			waited := max(now.Sub(before[w]), 0)
			aboutWait(logger, w).Info("Wait ends", "waited", waited.Round(time.Second).String())
		}
	}
	return open
}

func aboutWait(logger logr.Logger, w plan.Waiting) logr.Logger {
	logger = logger.WithValues(keyRegistration, w.Registration, keyPod, w.Pod, "gate", w.Gate)
	if w.Key != "" {
		logger = logger.WithValues("key", w.Key)
	}
	if w.Registry != "" {
		logger = logger.WithValues(keyRegistry, w.Registry)
	}
	return logger
}

// logChanges logs each change of an entry, and each Pod that the registry, read back, has in
// or out of service now.
func logChanges(ctx context.Context, c *madeChanges) {
	was, is := inService(c.before.Entries), inService(c.after.Entries)
	for _, change := range slices.Concat(c.Leaves, c.Orphans, c.Joins) {
		e, reason := change.Entry, c.Reasons[change.Entry.ID]
		about := log.FromContext(ctx).WithValues(keyRegistration, e.Owner.Registration, keyRegistry, c.Target.Registry,
			"service", c.Target.Service, keyPod, e.Owner.Pod)
		err := cmp.Or(c.failed[e.ID], c.failed[""])
		switch {
		case err == nil:
			about.V(1).Info("Entry written", "operation", change.Op, "weight", e.Weight, "reason", reason)
		case plan.ReasonOf(err) == plan.ReasonRateLimited:
			about.V(1).Info("Entry postponed: rate limit", "operation", change.Op, "reason", reason)
		case plan.ReasonOf(err) == plan.ReasonRegistryUnavailable:
			// The registry's own line reports it once.
			about.V(1).Info("Entry not written", "operation", change.Op, "reason", reason, "cause", err.Error())
		default:
			about.Error(err, "Entry refused", "operation", change.Op, "reason", reason)
		}
		switch {
		case c.after.Err != nil || was[e.ID] == is[e.ID]:
		case is[e.ID]:
			about.Info("Pod is in service", "address", e.Address, "port", e.Port)
		default:
			about.Info("Pod is out of service", "reason", reason)
		}
	}
}

// inService has the IDs of the entries that callers get.
func inService(entries []registry.Entry) map[string]bool {
	ids := make(map[string]bool, len(entries))
	for _, e := range entries {
		ids[e.ID] = e.Weight > 0 && e.Unsettled == ""
	}
	return ids
}

// logPatch logs what a patch of a Pod has done. The pass fails with those that fail.
func logPatch(ctx context.Context, patch *plan.PodPatch) {
	about := log.FromContext(ctx).WithValues(keyPod, patch.Pod.Name)
	for _, r := range patch.Released {
		released := about.WithValues("gate", r.Gate, "key", r.Key)
		if len(r.Forced) > 0 {
			released.Info("Hook released at its deadline", "unconfirmed", r.Forced)
			continue
		}
		if len(r.Busy) > 0 {
			released.Info("Hook released at the timeout of until", "busy", r.Busy)
			continue
		}
		released.V(1).Info("Hook released", "reason", "every registry has confirmed")
	}
	about.V(1).Info("Pod patched", "drain", patch.Drain, "drainEnds", patch.DropDrain,
		"finalizersAdded", patch.AddFinalizers, "finalizersRemoved", patch.RemoveFinalizers)
}

// registryJournal reports what probes and passes find out about registries.
type registryJournal struct {
	metrics   *metrics
	announcer *announcer
}

// Fails implements registries.Journal.
func (j registryJournal) Fails(ctx context.Context, object *usherv1alpha1.Registry, err error, first bool) {
	j.metrics.failed(object.Name, err)
	about := log.FromContext(ctx).WithValues(keyRegistry, object.Name)
	if first {
		about.Error(err, "Registry fails", "reason", plan.ReasonOf(err))
	} else {
		about.V(1).Info("Registry still fails", "reason", plan.ReasonOf(err), "cause", err.Error())
	}
}

// Warn implements registries.Journal.
func (j registryJournal) Warn(about client.Object, reason, action, message string) {
	j.announcer.warn(about, reason, action, message)
}

// Forget implements registries.Journal.
func (j registryJournal) Forget(name string) { j.metrics.forgetRegistry(name) }

// quiet is how long the same event about the same object is not repeated.
const quiet = 10 * time.Minute

// Reasons and actions of events.
const (
	eventTakenBack = "DeletionTakenBack"
	// eventFinished: Usher deletes a Pod that has drained for somebody else's request.
	eventFinished  = "DeletedAfterDrain"
	actionDelete   = "Delete"
	actionRelease  = "ReleaseHook"
	actionDrain    = "Drain"
	actionAnswer   = "AnswerHook"
	actionRegister = "Register"
	actionWrite    = "Write"
	// eventRefused: the API server refuses what Usher writes to the object.
	eventRefused = "WriteRefused"
	// eventNamesInvalid: the Pod's annotation names no Registrations that Usher can have written.
	eventNamesInvalid = "RegistrationsInvalid"
	maxEventLength    = 1000
)

// announcer sends events, and repeats none within that time.
type announcer struct {
	recorder events.EventRecorder
	sent     *cache.Expiring
}

func (a *announcer) warn(about client.Object, reason, action, message string) {
	a.send(about, corev1.EventTypeWarning, reason, action, message)
}

// say sends an event about what is as it should be.
func (a *announcer) say(about client.Object, reason, action, message string) {
	a.send(about, corev1.EventTypeNormal, reason, action, message)
}

func (a *announcer) send(about client.Object, kind, reason, action, message string) {
	message = plan.Shorten(message, maxEventLength)
	key := string(about.GetUID()) + "\n" + reason + "\n" + message
	if _, again := a.sent.Get(key); again {
		return
	}
	a.sent.Set(key, nil, quiet)
	a.recorder.Eventf(about, nil, kind, reason, action, "%s", message)
}

// announce sends the events of a pass whose writes are done.
func (r *Reconciler) announce(done stage) {
	for _, w := range done.decided.Waiting {
		if pod := done.seen.snapshot.Pod(w.Pod); w.Overdue && pod != nil {
			r.announcer.warn(pod, plan.ReasonDeadlineExceeded, actionDrain, fmt.Sprintf(
				"The deadline of Registration %s has passed and onDeadline is Block: %s", w.Registration, w))
		}
	}
	for _, w := range done.decided.Waiting {
		if w.Reason != plan.ReasonKeyRefused && w.Reason != plan.ReasonKeyNotAllowed {
			continue
		}
		if pod := done.seen.snapshot.Pod(w.Pod); pod != nil {
			message := fmt.Sprintf("Registration %s, at %s: %s", w.Registration, w.Gate, w.Message)
			r.announcer.warn(pod, string(w.Reason), actionAnswer, message)
		}
	}
	for i := range done.decided.Outcomes {
		r.announceOutcome(&done.decided.Outcomes[i])
	}
}

func (r *Reconciler) announceOutcome(o *plan.Outcome) {
	for _, w := range o.Missing {
		if slices.Contains([]plan.Reason{plan.ReasonServiceTaken, plan.ReasonServiceNotAllowed, plan.ReasonRegistryFull}, w.Reason) {
			r.announcer.warn(o.Registration, string(w.Reason), actionRegister, w.Message)
		}
	}
	if o.Released && len(o.Forced) > 0 {
		r.announcer.warn(o.Registration, plan.ReasonForced, actionRelease, fmt.Sprintf(
			"The deadline has passed and onDeadline is Proceed: the Registration goes before %s confirmed that nothing "+
				"of it is listed. Usher removes the rest when it can.", strings.Join(o.Forced, ", ")))
	}
	for _, f := range o.Findings {
		r.announcer.warn(f.CloneSet, f.Reason, actionAnswer, f.Message)
	}
	for _, v := range o.InvalidValues {
		r.announcer.warn(v.Pod, plan.ReasonInstanceInvalid, actionRegister,
			fmt.Sprintf("Registration %s: %s", o.Registration.Name, v.Message))
	}
}

// returnsIf says when a Pod comes back that nobody has asked to delete.
var returnsIf = map[string]string{
	plan.ReasonNodeGoes:          "if the node stays",
	plan.ReasonEvictionRequested: "if nobody wants that any more",
}

// takenBack says why a request is taken back.
func takenBack(t *plan.TakenBack) string {
	if t.Because != "" {
		return fmt.Sprintf("%s asked to delete the Pod, and %s: it is registered again.", t.By, t.Because)
	}
	return fmt.Sprintf("%s asked to delete the Pod, and has not come back for %s: it is registered again.", t.By, t.After.Round(time.Second))
}

// reportPatch reports a patch of a Pod that was made, and the hooks that it has released.
func (r *Reconciler) reportPatch(ctx context.Context, patch *plan.PodPatch) {
	logPatch(ctx, patch)
	if t := patch.TakenBack; t != nil {
		r.announcer.warn(patch.Pod, eventTakenBack, actionRegister, takenBack(t))
	}
	if patch.Goes != "" {
		r.announcer.warn(patch.Pod, patch.Leaves, actionDrain,
			patch.Goes+": the Pod leaves its registries now, and comes back "+returnsIf[patch.Leaves]+".")
	}
	r.metrics.patched(patch)
	for _, release := range patch.Released {
		if len(release.Busy) > 0 {
			r.announcer.warn(patch.Pod, plan.ReasonBusy, actionRelease, fmt.Sprintf(
				"spec.drain.until.timeout has passed and onDeadline is Proceed: %s (%s) was released although the Pod may be busy. "+
					"Requests may be lost. %s", release.Gate, release.Key, strings.Join(release.Busy, "; ")))
		}
		if len(release.Forced) > 0 {
			r.announcer.warn(patch.Pod, plan.ReasonForced, actionRelease, fmt.Sprintf(
				"The deadline has passed and onDeadline is Proceed: %s (%s) was released before %s confirmed. "+
					"Requests may be lost.", release.Gate, release.Key, strings.Join(release.Forced, ", ")))
		}
	}
}
