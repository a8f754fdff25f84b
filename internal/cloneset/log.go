// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// rolloutLog is what was logged about a set: the beginning and end of its rollout, and
// every wait of a Pod. So a pass without changes logs nothing.
type rolloutLog struct {
	// revision is that of the last rollout.
	revision string
	// begun is when it began; zero if this process did not see that.
	begun time.Time
	ended bool
	// waits are the open waits, by Pod.
	waits map[string]plan.Blocked
}

// logPass logs what a pass has changed.
func (r *Reconciler) logPass(ctx context.Context, set *apps.CloneSet, next *apps.CloneSetStatus, blocked []plan.Blocked, outcomes []outcome, now time.Time) {
	logger := log.FromContext(ctx)
	logOutcomes(logger, outcomes)
	l := &r.memory(keyOf(set)).rollout
	rollout := set.DeletionTimestamp == nil
	if rollout {
		l.begin(logger, &set.Status, next, now)
	}
	l.wait(logger, blocked, now)
	if rollout {
		l.end(logger, next, now)
	}
}

// logOutcomes logs each action with its reason, and each failure.
func logOutcomes(logger logr.Logger, outcomes []outcome) {
	for _, o := range outcomes {
		about := logger.WithValues("action", strings.ToLower(string(o.action.Verb)), "reason", o.action.Reason)
		if o.pod != nil {
			about = about.WithValues("pod", o.pod.Name)
		}
		if o.action.Revision != nil {
			about = about.WithValues("revision", o.action.Revision.Name)
		}
		if o.action.Because != "" {
			about = about.WithValues("because", o.action.Because)
		}
		if o.action.To != "" {
			about = about.WithValues("state", o.action.To)
		}
		switch {
		case o.err == nil:
			about.V(1).Info("Action done")
		case o.conflicted():
			about.V(1).Info("Action dropped: the Pod has changed", "cause", o.err.Error())
		case o.deferred() != nil:
			about.V(1).Info("Action deferred", "cause", o.err.Error())
		default:
			about.Error(o.err, "Action failed")
		}
	}
}

// begin logs that a rollout begins or continues, according to the status.
func (l *rolloutLog) begin(logger logr.Logger, was, is *apps.CloneSetStatus, now time.Time) {
	about := aboutRollout(logger, is)
	switch {
	case is.UpdateRevision != was.UpdateRevision && is.UpdateRevision != l.revision:
		*l = rolloutLog{revision: is.UpdateRevision, begun: now, waits: l.waits}
		about.Info("Rollout begins", "from", was.UpdateRevision)
	case is.UpdateRevision != l.revision: // this process has not seen it begin
		*l = rolloutLog{revision: is.UpdateRevision, ended: rolledOut(is), waits: l.waits}
		if !l.ended {
			about.Info("Rollout continues")
		}
	case l.ended && is.UpdatedReplicas < is.ExpectedUpdatedReplicas: // the partition has moved
		l.begun, l.ended = now, false
		about.Info("Rollout continues")
	}
}

// end logs that a rollout ends.
func (l *rolloutLog) end(logger logr.Logger, is *apps.CloneSetStatus, now time.Time) {
	if l.ended || !rolledOut(is) {
		return
	}
	l.ended = true
	about := aboutRollout(logger, is)
	if !l.begun.IsZero() {
		about = about.WithValues("took", now.Sub(l.begun).Round(time.Millisecond).String())
	}
	about.Info("Rollout ends")
}

// rolledOut reports whether as many Pods as the partition leaves have the update
// revision, and all Pods are available.
func rolledOut(is *apps.CloneSetStatus) bool {
	return is.UpdatedAvailableReplicas >= is.ExpectedUpdatedReplicas && is.AvailableReplicas == is.Replicas
}

func aboutRollout(logger logr.Logger, is *apps.CloneSetStatus) logr.Logger {
	return logger.WithValues("revision", is.UpdateRevision, "replicas", is.Replicas,
		"updated", is.UpdatedReplicas, "wanted", is.ExpectedUpdatedReplicas, "available", is.AvailableReplicas)
}

// wait logs each wait of a Pod that begins or ends.
func (l *rolloutLog) wait(logger logr.Logger, blocked []plan.Blocked, now time.Time) {
	waits := make(map[string]plan.Blocked, len(blocked))
	for _, b := range blocked {
		waits[b.Pod] = b
		if was, ok := l.waits[b.Pod]; !ok || !sameWait(&was, &b) {
			logger.Info("Wait begins", waitOf(&b)...)
		}
	}
	for _, pod := range slices.Sorted(maps.Keys(l.waits)) {
		was, is := l.waits[pod], waits[pod]
		if sameWait(&was, &is) {
			continue
		}
		about := waitOf(&was)
		if !was.Since.IsZero() {
			about = append(about, "waited", now.Sub(was.Since).Round(time.Second).String())
		}
		logger.Info("Wait ends", about...)
	}
	l.waits = waits
}

// sameWait reports whether two waits of a Pod are the same.
func sameWait(a, b *plan.Blocked) bool {
	return a.Pod == b.Pod && a.Gate == b.Gate && a.State == b.State && slices.Equal(a.Keys, b.Keys)
}

// waitOf describes what a Pod waits for.
func waitOf(b *plan.Blocked) []any {
	about := []any{"pod", b.Pod, "state", b.State}
	switch {
	case b.Batch != nil:
		return append(about, "containers", b.Batch.Containers)
	case b.Stuck != nil:
		return append(about, "container", b.Stuck.Container, "image", b.Stuck.Image, "reason", b.Stuck.Reason)
	case b.Deferral != nil:
		return append(about, "gate", b.Gate, "message", b.Deferral.Message)
	}
	return append(about, "gate", b.Gate, "keys", b.Keys)
}
