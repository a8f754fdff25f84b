// SPDX-License-Identifier: Apache-2.0

package plan

import "time"

// Reasons of the condition Progressing, as OpenKruise spells them.
const (
	// ProgressUpdated: the rollout is under way, or Pods have failed after one.
	ProgressUpdated = "CloneSetUpdated"
	// ProgressAvailable: every Pod has the update revision and serves.
	ProgressAvailable = "CloneSetAvailable"
	// ProgressPaused: updates are held, and the clock with them.
	ProgressPaused = "CloneSetPaused"
	// ProgressPartitionAvailable: as many Pods as the partition leaves have the
	// update revision and serve.
	ProgressPartitionAvailable = "ProgressPartitionAvailable"
	// ProgressDeadlineExceeded: nothing moved for spec.progressDeadlineSeconds. It
	// stays so until one of the three above holds, or another rollout begins.
	ProgressDeadlineExceeded = "ProgressDeadlineExceeded"
)

// Progress is how a rollout gets on. The zero Progress is not tracked.
type Progress struct {
	// Reason is one of the reasons above.
	Reason string
	// Since is when the rollout last moved.
	Since time.Time
	// Deadline is when it will have stood still for too long; zero if no clock runs.
	Deadline time.Time
}

// Mark is what a status keeps of a rollout, to tell later whether it has moved.
type Mark struct {
	Counts
	// Revision names the update revision.
	Revision string
}

// Assess tells how a rollout gets on, from what the last status said and what is
// true now. The rollout goes on whatever the answer.
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
		return Progress{Reason: last.Reason, Since: last.Since} // a late move does not take it back
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

// standing is the reason that the set's Pods and its spec give by themselves.
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

// beyond says that the rollout has moved, or is another one.
func (m Mark) beyond(before Mark) bool {
	return m.Revision != before.Revision || m.ExpectedUpdated != before.ExpectedUpdated || m.Updated > before.Updated ||
		m.UpdatedReady > before.UpdatedReady || m.UpdatedAvailable > before.UpdatedAvailable ||
		m.Replicas-m.Updated < before.Replicas-before.Updated
}
