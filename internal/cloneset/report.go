// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
	"github.com/usher-dev/usher/internal/list"
)

// This file reports what a pass found and did: metrics, the status, events and the log, in this order.

// reported is the result of a report.
type reported struct {
	// due is when the next report is due; zero if no time is known.
	due time.Time
	err error
}

// report reports on a pass.
func (r *Reconciler) report(
	ctx context.Context, after *observation, decided *plan.Plan, done *results, status *status,
) reported {
	set, now := after.set, after.snapshot.Now
	r.metrics.passed(set, done.actions, status.blocked, done.outcomes, after.snapshot)
	r.reportPulls(set, &done.pulls)
	due, err := r.reportStatus(ctx, set, status, done.outcomes, now)
	r.recordEvents(set, decided, status.blocked, now)
	r.logPass(ctx, set, &status.next, status.blocked, done.outcomes, now)
	if err == nil {
		r.recordProgress(set, &status.next)
	}
	return reported{due: list.Earliest(due, status.changesAt), err: err}
}

// reportStatus writes the status of a pass, and the events of its writes and of earlier ones. While
// Pods change their state it may leave both to a later pass. It returns when that pass is due; zero if
// an event causes it, or there is nothing to report.
func (r *Reconciler) reportStatus(
	ctx context.Context, set *apps.CloneSet, status *status, outcomes []outcome, now time.Time,
) (due time.Time, err error) {
	kept, next := &r.passState(keyOf(set)).status, &status.next
	same := equality.Semantic.DeepEqual(set.Status, *next)
	kept.pending = append(kept.pending, list.Only(outcomes, outcome.hasEvent)...)
	if same && len(kept.pending) == 0 {
		return time.Time{}, nil
	}
	if beginsRollout(&set.Status, next) && kept.deadline.IsZero() {
		kept.deadline = now.Add(beginWithin)
	}
	if set.DeletionTimestamp == nil {
		urgency, due := urgencyOf(kept, &set.Status, next, outcomes, status.settled(), now)
		if urgency == later || urgency == asAllowed && !r.progress.AllowN(now, 1) {
			return due, nil
		}
	}
	if !same {
		kept.lastStatus, kept.deadline = now, time.Time{}
	}
	err = r.writeStatus(ctx, set, *next)
	r.recordOutcomes(set, kept.pending)
	kept.pending = nil
	return time.Time{}, err
}

// writeStatus writes the status if it changed.
func (r *Reconciler) writeStatus(ctx context.Context, set *apps.CloneSet, next apps.CloneSetStatus) error {
	if equality.Semantic.DeepEqual(set.Status, next) {
		return nil
	}
	if _, err := r.writeSet(ctx, "status", set, map[string]any{"status": next}); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}
