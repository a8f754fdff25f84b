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
	deadline := func(s *Snapshot) { s.Spec.ProgressDeadline = time.Minute }
	kept := func(s *Snapshot) { s.Spec.Partition = Count{Value: 5} }
	moving := Progress{Reason: ProgressUpdated, Since: ago(30 * time.Second)}
	for _, test := range []struct {
		name          string
		s             *Snapshot
		last          Progress
		before, after Mark
		want          Progress
	}{
		{"not tracked", snap(10), moving, mark("r1", 0, 0), mark("r1", 0, 0), Progress{}},
		{"first look", snap(10, deadline), Progress{}, Mark{}, mark("r1", 0, 0), Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"a Pod more", snap(10, deadline), moving, mark("r1", 1, 0), mark("r1", 2, 0), Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"an old Pod less", snap(10, deadline), moving, Mark{Counts{Replicas: 10, Updated: 2, ExpectedUpdated: 10}, "r1"}, Mark{Counts{Replicas: 9, Updated: 2, ExpectedUpdated: 10}, "r1"},
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"nothing moved", snap(10, deadline), moving, mark("r1", 1, 0), mark("r1", 1, 0), Progress{ProgressUpdated, moving.Since, now.Add(30 * time.Second)}},
		{"too long", snap(10, deadline), Progress{Reason: ProgressUpdated, Since: ago(time.Minute)}, mark("r1", 1, 0), mark("r1", 1, 0),
			Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Minute)}},
		{"still too long", snap(10, deadline), Progress{Reason: ProgressDeadlineExceeded, Since: now}, mark("r1", 1, 0), mark("r1", 1, 0),
			Progress{Reason: ProgressDeadlineExceeded, Since: now}},
		{"moves after all, too late", snap(10, deadline), Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Hour)}, mark("r1", 1, 0), mark("r1", 1, 1),
			Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Hour)}},
		{"done after all", snap(10, deadline), Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Hour)}, mark("r1", 10, 9), mark("r1", 10, 10),
			Progress{Reason: ProgressAvailable, Since: now}},
		{"too long, and another rollout begins", snap(10, deadline), Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Hour)}, mark("r1", 1, 0), mark("r2", 0, 0),
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"complete", snap(10, deadline), moving, mark("r1", 10, 9), mark("r1", 10, 10), Progress{Reason: ProgressAvailable, Since: now}},
		{"still complete", snap(10, deadline), Progress{Reason: ProgressAvailable, Since: ago(time.Hour)}, mark("r1", 10, 10), mark("r1", 10, 10),
			Progress{Reason: ProgressAvailable, Since: ago(time.Hour)}},
		{"a Pod fails afterwards", snap(10, deadline), Progress{Reason: ProgressAvailable, Since: ago(time.Hour)}, mark("r1", 10, 10), mark("r1", 10, 9),
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"… for too long", snap(10, deadline), Progress{Reason: ProgressUpdated, Since: ago(time.Minute)}, mark("r1", 10, 9), mark("r1", 10, 9),
			Progress{Reason: ProgressDeadlineExceeded, Since: ago(time.Minute)}},
		{"a Pod fails after the partition was reached", snap(10, deadline, kept), Progress{Reason: ProgressPartitionAvailable, Since: ago(time.Hour)},
			Mark{Counts{Replicas: 10, Updated: 5, UpdatedAvailable: 5, ExpectedUpdated: 5}, "r1"}, Mark{Counts{Replicas: 10, Updated: 5, UpdatedAvailable: 4, ExpectedUpdated: 5}, "r1"},
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"the next rollout", snap(10, deadline), Progress{Reason: ProgressAvailable, Since: ago(time.Hour)}, mark("r1", 10, 10), mark("r2", 0, 0),
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"paused", snap(10, deadline, paused), moving, mark("r1", 1, 0), mark("r1", 1, 0), Progress{Reason: ProgressPaused, Since: now}},
		{"paused for long: no clock runs", snap(10, deadline, paused), Progress{Reason: ProgressPaused, Since: ago(time.Hour)}, mark("r1", 1, 0), mark("r1", 1, 0),
			Progress{Reason: ProgressPaused, Since: ago(time.Hour)}},
		{"resumed", snap(10, deadline), Progress{Reason: ProgressPaused, Since: ago(time.Hour)}, mark("r1", 1, 0), mark("r1", 1, 0),
			Progress{ProgressUpdated, now, now.Add(time.Minute)}},
		{"the partition is reached", snap(10, deadline, kept), moving, Mark{Counts{Replicas: 10, Updated: 5, UpdatedAvailable: 4, ExpectedUpdated: 5}, "r1"},
			Mark{Counts{Replicas: 10, Updated: 5, UpdatedAvailable: 5, ExpectedUpdated: 5}, "r1"}, Progress{Reason: ProgressPartitionAvailable, Since: now}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Assess(test.s, test.last, test.before, test.after); got != test.want {
				t.Errorf("Assess = %+v, want %+v", got, test.want)
			}
		})
	}
}
