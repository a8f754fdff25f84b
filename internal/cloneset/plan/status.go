// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"iter"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// Counts are the numbers of a set's status.
type Counts struct {
	Replicas, Ready, Available              int
	Updated, UpdatedReady, UpdatedAvailable int
	ExpectedUpdated                         int
	// Scaled is how many Pods an autoscaler is to assume, Uncounted are the states of those that it is
	// not to count.
	Scaled    int
	Uncounted []apps.LifecycleState
	// RolledOut means that every Pod that should exist has the update revision, so that
	// it becomes the current one.
	RolledOut bool
	// ReportAt is when Review will report another wait, because it has lasted long enough by then; zero
	// if there is none.
	ReportAt time.Time
}

// Review examines a set as a pass left it. It counts the Pods, and lists the waits: those that it finds
// and those that the plan has found, longest first.
func Review(s *Snapshot, found ...Blocked) (Counts, []Blocked) {
	var c Counts
	waiting, states := slices.Clone(found), map[apps.LifecycleState]int{}
	for status := range PodStatuses(s) {
		waiting = append(waiting, status.Waits...)
		c.ReportAt = list.Earliest(c.ReportAt, status.ReportAt)
		if status.Active {
			states[status.State]++
			c.Replicas++
			c.Ready += one(status.Ready)
			c.Available += one(status.Available)
			c.Updated += one(status.Updated)
			c.UpdatedReady += one(status.Updated && status.Ready)
			c.UpdatedAvailable += one(status.Updated && status.Available)
		}
	}
	c.Scaled, c.Uncounted = min(c.Replicas, s.Spec.Replicas), uncounted(states, c.Replicas-s.Spec.Replicas)
	c.ExpectedUpdated = s.Spec.Replicas - s.Spec.partition()
	c.RolledOut = c.Updated == c.Replicas && c.Replicas == s.Spec.Replicas
	slices.SortStableFunc(waiting, byWait)
	return c, waiting
}

// Serving counts the available Pods, as Review does.
func (s *Snapshot) Serving() int {
	n := 0
	for i := range s.Pods {
		info := s.at(i)
		if serves, _ := s.availability(info); serves && info.active() {
			n++
		}
	}
	return n
}

// PodStatus is the part of a set's status that concerns one Pod.
type PodStatus struct {
	Pod *corev1.Pod
	// Active means that the Pod holds a place in the set: it is neither terminating nor
	// ended.
	Active bool
	// State is the Pod's lifecycle state.
	State apps.LifecycleState
	// Updated means that it has the update revision. Available Pods serve.
	Updated, Ready, Available bool
	// Waits are the Pod's waits, as in Review.
	Waits []Blocked
	// ReportAt is when another wait is to be reported; zero if there is none.
	ReportAt time.Time
}

// PodStatuses yields the status of each Pod as Review counts it, in name order.
func PodStatuses(s *Snapshot) iter.Seq[PodStatus] {
	return func(yield func(PodStatus) bool) {
		var v podState // one for all Pods: it is large
		for i := range s.Pods {
			v = podState{}
			s.read(&v, s.at(i))
			if !yield(PodStatus{
				Pod: v.pod, Active: v.active(), State: v.state, Updated: v.isUpdated, Ready: v.ready, Available: v.available, Waits: s.blocked(&v),
				ReportAt: s.future(v.idle.reportAt()),
			}) {
				return
			}
		}
	}
}

// future returns a time that is still to come; zero if it has passed.
func (s *Snapshot) future(at time.Time) time.Time {
	if s.Now.Before(at) {
		return at
	}
	return time.Time{}
}

// Budget bounds how many Pods of a set an update may affect.
type Budget struct {
	// Partition is how many Pods keep the old revision, MaxUnavailable how many may be out
	// of service, MaxSurge how many may exist above replicas.
	Partition, MaxUnavailable, MaxSurge int
}

// Budget computes percentages.
func (s *Spec) Budget() Budget {
	return Budget{Partition: s.partition(), MaxUnavailable: s.maxUnavailable(), MaxSurge: s.maxSurge()}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// Reasons of the condition Progressing, as OpenKruise spells them.
const (
	// ProgressUpdated: the rollout is under way, or Pods have failed after one.
	ProgressUpdated = "CloneSetUpdated"
	// ProgressAvailable: every Pod has the update revision and serves.
	ProgressAvailable = "CloneSetAvailable"
	// ProgressPaused: updates are paused, and so is the deadline's clock.
	ProgressPaused = "CloneSetPaused"
	// ProgressPartitionAvailable: as many Pods as the partition allows have the update revision and
	// serve.
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

// Assess derives a rollout's progress from the last status and the present state. It does not affect
// the rollout.
func Assess(s *Snapshot, before, after *apps.CloneSetStatus) Progress {
	if s.Spec.ProgressDeadline == 0 {
		return Progress{}
	}
	last := LastProgress(before)
	if reason := s.standing(after); reason != "" {
		if reason == last.Reason {
			return Progress{Reason: reason, Since: last.Since}
		}
		return Progress{Reason: reason, Since: s.Now}
	}
	if last.Reason == ProgressDeadlineExceeded && after.UpdateRevision == before.UpdateRevision {
		return Progress{Reason: last.Reason, Since: last.Since} // a late move does not revoke it
	}
	if last.Reason != ProgressUpdated || moved(before, after) {
		return Progress{Reason: ProgressUpdated, Since: s.Now, Deadline: s.Now.Add(s.Spec.ProgressDeadline)}
	}
	deadline := last.Since.Add(s.Spec.ProgressDeadline)
	if !s.Now.Before(deadline) {
		return Progress{Reason: ProgressDeadlineExceeded, Since: last.Since}
	}
	return Progress{Reason: ProgressUpdated, Since: last.Since, Deadline: deadline}
}

// LastProgress reads the progress from a status. The condition's update time is when the
// rollout last moved.
func LastProgress(status *apps.CloneSetStatus) Progress {
	if c := status.Condition(apps.ConditionProgressing); c != nil {
		return Progress{Reason: c.Reason, Since: c.LastUpdateTime.Time}
	}
	return Progress{}
}

// standing returns the reason that follows from the set's Pods and spec alone.
func (s *Snapshot) standing(is *apps.CloneSetStatus) string {
	whole := int(is.Replicas) == s.Spec.Replicas
	switch {
	case whole && is.UpdatedAvailableReplicas == is.Replicas:
		return ProgressAvailable
	case s.Spec.Paused:
		return ProgressPaused
	case whole && s.Spec.partition() > 0 && is.UpdatedAvailableReplicas >= is.ExpectedUpdatedReplicas:
		return ProgressPartitionAvailable
	}
	return ""
}

// moved reports whether the rollout has moved, or is another one.
func moved(was, is *apps.CloneSetStatus) bool {
	return is.UpdateRevision != was.UpdateRevision || is.ExpectedUpdatedReplicas != was.ExpectedUpdatedReplicas ||
		is.UpdatedReplicas > was.UpdatedReplicas || is.UpdatedReadyReplicas > was.UpdatedReadyReplicas ||
		is.UpdatedAvailableReplicas > was.UpdatedAvailableReplicas ||
		is.Replicas-is.UpdatedReplicas < was.Replicas-was.UpdatedReplicas
}
