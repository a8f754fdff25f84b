// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// setProgress sets the condition Progressing, and returns when time alone changes it. A
// set without a deadline has no such condition.
func setProgress(set *apps.CloneSet, s *plan.Snapshot, counts plan.Counts, next *apps.CloneSetStatus) time.Time {
	progress := plan.Assess(s, lastProgress(&set.Status), markOf(&set.Status), plan.Mark{Counts: counts, Revision: next.UpdateRevision})
	if progress.Reason == "" {
		next.Conditions = slices.DeleteFunc(next.Conditions, func(c apps.CloneSetCondition) bool { return c.Type == apps.ConditionProgressing })
		return time.Time{}
	}
	value := corev1.ConditionTrue
	if progress.Reason == plan.ProgressDeadlineExceeded {
		value = corev1.ConditionFalse
	}
	c := conditionOf(next, apps.ConditionProgressing)
	if c.Status != value {
		c.LastTransitionTime = metav1.NewTime(s.Now)
	}
	c.Status, c.Reason, c.Message = value, progress.Reason, progressMessage(progress.Reason, next.UpdateRevision)
	if c.LastUpdateTime.Unix() != progress.Since.Unix() {
		c.LastUpdateTime = metav1.NewTime(progress.Since)
	}
	return progress.Deadline
}

// lastProgress reads the progress from the last status. The condition's update time is
// when the rollout last moved.
func lastProgress(status *apps.CloneSetStatus) plan.Progress {
	if c := status.Condition(apps.ConditionProgressing); c != nil {
		return plan.Progress{Reason: c.Reason, Since: c.LastUpdateTime.Time}
	}
	return plan.Progress{}
}

func markOf(status *apps.CloneSetStatus) plan.Mark {
	return plan.Mark{
		Revision: status.UpdateRevision,
		Counts: plan.Counts{
			Replicas: int(status.Replicas), Updated: int(status.UpdatedReplicas), UpdatedReady: int(status.UpdatedReadyReplicas),
			UpdatedAvailable: int(status.UpdatedAvailableReplicas), ExpectedUpdated: int(status.ExpectedUpdatedReplicas),
		},
	}
}

// progressMessage is OpenKruise's text, letter for letter: scripts and dashboards compare
// it.
func progressMessage(reason, revision string) string {
	switch reason {
	case plan.ProgressAvailable:
		return "CloneSet is available"
	case plan.ProgressPaused:
		return "CloneSet is paused"
	case plan.ProgressPartitionAvailable:
		return "CloneSet has been paused due to partition ready"
	case plan.ProgressDeadlineExceeded:
		return fmt.Sprintf("CloneSet revision %s has timed out progressing", revision)
	}
	return "CloneSet is progressing"
}
