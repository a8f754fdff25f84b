// SPDX-License-Identifier: Apache-2.0

package plan

import "time"

// Reasons of the condition Progressing, as OpenKruise spells them.
const (
	// ProgressUpdated: the rollout is under way, or Pods have failed after one.
	ProgressUpdated = "CloneSetUpdated"
	// ProgressAvailable: every Pod has the update revision and serves.
	ProgressAvailable = "CloneSetAvailable"
	// ProgressPaused: updates are paused, and so is the deadline's clock.
	ProgressPaused = "CloneSetPaused"
	// ProgressPartitionAvailable: as many Pods as the partition leaves have the update
	// revision and serve.
	ProgressPartitionAvailable = "ProgressPartitionAvailable"
	// ProgressDeadlineExceeded: nothing moved for spec.progressDeadlineSeconds. It stays
	// so until one of the three above holds, or another rollout begins.
	ProgressDeadlineExceeded = "ProgressDeadlineExceeded"
)

// Progress is how far a rollout is. The zero Progress is not tracked.
type Progress struct {
	// Reason is one of the reasons above.
	Reason string
	// Since is when the rollout last moved.
	Since time.Time
	// Deadline is when it will have stalled for too long; zero if no clock runs.
	Deadline time.Time
}

// Mark is what a status keeps of a rollout, to detect later whether it has moved.
type Mark struct {
	Counts
	// Revision names the update revision.
	Revision string
}

// Assess derives a rollout's progress from the last status and the present state. The
// rollout continues whatever the answer.
func Assess(s *Snapshot, last Progress, before, after Mark) Progress {
	if s.Spec.ProgressDeadline == 0 {
		return Progress{}
	}
	if reason := s.standing(after.Counts); reason != "" {
		if reason == last.Reason {
			return Progress{Reason: reason, Since: last.Since}
		}
		return Progress{Reason: reason, Since: s.Now}
	}
	if last.Reason == ProgressDeadlineExceeded && after.Revision == before.Revision {
		return Progress{Reason: last.Reason, Since: last.Since} // a late move does not revoke it
	}
	if last.Reason != ProgressUpdated || after.beyond(before) {
		return Progress{Reason: ProgressUpdated, Since: s.Now, Deadline: s.Now.Add(s.Spec.ProgressDeadline)}
	}
	deadline := last.Since.Add(s.Spec.ProgressDeadline)
	if !s.Now.Before(deadline) {
		return Progress{Reason: ProgressDeadlineExceeded, Since: last.Since}
	}
	return Progress{Reason: ProgressUpdated, Since: last.Since, Deadline: deadline}
}

// standing is the reason that follows from the set's Pods and spec alone.
func (s *Snapshot) standing(c Counts) string {
	whole := c.Replicas == s.Spec.Replicas
	switch {
	case whole && c.UpdatedAvailable == c.Replicas:
		return ProgressAvailable
	case s.Spec.Paused:
		return ProgressPaused
	case whole && s.Spec.partition() > 0 && c.UpdatedAvailable >= c.ExpectedUpdated:
		return ProgressPartitionAvailable
	}
	return ""
}

// beyond reports whether the rollout has moved, or is another one.
func (m Mark) beyond(before Mark) bool {
	return m.Revision != before.Revision || m.ExpectedUpdated != before.ExpectedUpdated || m.Updated > before.Updated ||
		m.UpdatedReady > before.UpdatedReady || m.UpdatedAvailable > before.UpdatedAvailable ||
		m.Replicas-m.Updated < before.Replicas-before.Updated
}
