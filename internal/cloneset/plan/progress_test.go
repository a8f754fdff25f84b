// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"
)

// TestAssess leads a rollout of ten Pods through its reasons.
func TestAssess(t *testing.T) {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	counts := func(updated, available int) Counts {
		return Counts{Replicas: 10, Updated: updated, UpdatedReady: available, UpdatedAvailable: available, ExpectedUpdated: 10}
	}
	mark := func(revision string, updated, available int) Mark { return Mark{counts(updated, available), revision} }
	moving := Progress{Reason: ProgressUpdated, Since: ago(30 * time.Second)}
	for _, test := range []struct {
		name          string
		set           string
		last          Progress
		before, after Mark
		want          Progress
	}{
		{"not tracked", "", moving, mark("r1", 0, 0), mark("r1", 0, 0), Progress{}},
		{"first look", "deadline 1m", Progress{}, Mark{}, mark("r1", 0, 0), Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"a Pod more", "deadline 1m", moving, mark("r1", 1, 0), mark("r1", 2, 0), Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"an old Pod less", "deadline 1m", moving, Mark{Counts{Replicas: 10, Updated: 2, ExpectedUpdated: 10}, "r1"}, Mark{Counts{Replicas: 9, Updated: 2, ExpectedUpdated: 10}, "r1"},
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"nothing moved", "deadline 1m", moving, mark("r1", 1, 0), mark("r1", 1, 0), Progress{ProgressUpdated, moving.Since, now.Add(30 * time.Second)}},
		{"too long", "deadline 1m", Progress{Reason: ProgressUpdated, Since: ago(time.Minute)}, mark("r1", 1, 0), mark("r1", 1, 0),
			Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Minute)}},
		{"still too long", "deadline 1m", Progress{Reason: ProgressDeadlineExceeded, Since: now}, mark("r1", 1, 0), mark("r1", 1, 0),
			Progress{Reason: ProgressDeadlineExceeded, Since: now}},
		{"moves after all, too late", "deadline 1m", Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Hour)}, mark("r1", 1, 0), mark("r1", 1, 1),
			Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Hour)}},
		{"done after all", "deadline 1m", Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Hour)}, mark("r1", 10, 9), mark("r1", 10, 10),
			Progress{Reason: ProgressAvailable, Since: now}},
		{"too long, and another rollout begins", "deadline 1m", Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Hour)}, mark("r1", 1, 0), mark("r2", 0, 0),
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"complete", "deadline 1m", moving, mark("r1", 10, 9), mark("r1", 10, 10), Progress{Reason: ProgressAvailable, Since: now}},
		{"still complete", "deadline 1m", Progress{Reason: ProgressAvailable, Since: ago(time.Hour)}, mark("r1", 10, 10), mark("r1", 10, 10),
			Progress{Reason: ProgressAvailable, Since: ago(time.Hour)}},
		{"a Pod fails afterwards", "deadline 1m", Progress{Reason: ProgressAvailable, Since: ago(time.Hour)}, mark("r1", 10, 10), mark("r1", 10, 9),
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"… for too long", "deadline 1m", Progress{Reason: ProgressUpdated, Since: ago(time.Minute)}, mark("r1", 10, 9), mark("r1", 10, 9),
			Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Minute)}},
		{"a Pod fails after the partition was reached", "deadline 1m; partition 5", Progress{Reason: ProgressPartitionAvailable, Since: ago(time.Hour)},
			Mark{Counts{Replicas: 10, Updated: 5, UpdatedAvailable: 5, ExpectedUpdated: 5}, "r1"}, Mark{Counts{Replicas: 10, Updated: 5, UpdatedAvailable: 4, ExpectedUpdated: 5}, "r1"},
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"the next rollout", "deadline 1m", Progress{Reason: ProgressAvailable, Since: ago(time.Hour)}, mark("r1", 10, 10), mark("r2", 0, 0),
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"paused", "deadline 1m; paused", moving, mark("r1", 1, 0), mark("r1", 1, 0), Progress{Reason: ProgressPaused, Since: now}},
		{"paused for long: no clock runs", "deadline 1m; paused", Progress{Reason: ProgressPaused, Since: ago(time.Hour)}, mark("r1", 1, 0), mark("r1", 1, 0),
			Progress{Reason: ProgressPaused, Since: ago(time.Hour)}},
		{"resumed", "deadline 1m", Progress{Reason: ProgressPaused, Since: ago(time.Hour)}, mark("r1", 1, 0), mark("r1", 1, 0),
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"the partition is reached", "deadline 1m; partition 5", moving, Mark{Counts{Replicas: 10, Updated: 5, UpdatedAvailable: 4, ExpectedUpdated: 5}, "r1"},
			Mark{Counts{Replicas: 10, Updated: 5, UpdatedAvailable: 5, ExpectedUpdated: 5}, "r1"}, Progress{Reason: ProgressPartitionAvailable, Since: now}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Assess(snap("replicas 10; "+test.set), test.last, test.before, test.after); got != test.want {
				t.Errorf("Assess = %+v, want %+v", got, test.want)
			}
		})
	}
}
