// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
)

// podState is one Pod as a pass sees it. Steps write only the last block.
type podState struct {
	PodInfo
	// wakeAt is when time alone changes what is true of the Pod; zero if never.
	wakeAt time.Time

	isUpdated  bool // has the update revision
	pending    bool // its revision label came before its containers, as OpenKruise does it
	restarting bool // the kubelet does not yet run what an update asked for
	// record is that of an update which may be under way; nil if there is none, or it
	// cannot be read.
	record *inplace.State
	// drained is since when the Pod is known to be out of service for an update; zero if
	// only its condition says so.
	drained time.Time
	weight  int // by spec.updateStrategy.priorityStrategy

	// leavesNode is why the Pod is to leave its node; "" if it stays, or was named for
	// deletion anyway.
	leavesNode string

	available bool
	underway  bool // counted in ledger.underway
	chosen    bool // for an update, by partition and order
	leaving   bool // being removed, and still holding a index
	removed   bool // its removal was decided in this pass
	acted     bool // has its action in this pass
	action    int  // its index in the plan
	moved     bool // that action changes its state
	fixed     bool // no other action may replace it
	deferred  bool // the API server has asked to wait before it is deleted
}

// reachedState is when the Pod reached its state; zero if unknown.
func reachedState(pod *corev1.Pod) time.Time {
	at, err := time.Parse(time.RFC3339, pod.Annotations[apps.AnnotationLifecycleTimestamp])
	if err != nil {
		return time.Time{}
	}
	return at
}

// active reports whether the Pod holds a index in the set: it runs or will, and is not
// terminating.
func (f *PodInfo) active() bool { return !f.terminate && !f.ended() }

// ended reports whether the Pod will never run again: it failed, was evicted, or its
// containers finished.
func (f *PodInfo) ended() bool { return f.phase == corev1.PodFailed || f.phase == corev1.PodSucceeded }

// preparesDelete reports whether the Pod is at the gate before its deletion.
func (f *PodInfo) preparesDelete() bool { return f.state == apps.StatePreparingDelete }

// at returns the PodInfo of the Pod at that index.
func (s *Snapshot) at(index int) *PodInfo {
	if index < len(s.PodInfos) && s.PodInfos[index].pod == s.Pods[index] {
		return s.PodInfos[index]
	}
	return newPodInfo(s.Pods[index])
}

// read reads a Pod for one pass.
func (s *Snapshot) read(v *podState, info *PodInfo) {
	pod := info.pod
	v.PodInfo = *info
	v.deferred = s.Now.Before(s.Deferred[pod.UID].Until)
	if v.inPlaceReady.Status == corev1.ConditionFalse {
		v.drained = s.Drained[pod.UID]
	}
	v.pending = v.state == apps.StateUpdating && pod.Annotations[apps.AnnotationInPlaceUpdateGrace] != ""
	v.isUpdated = revision.Same(v.revision, s.Update.Name) && !v.pending
	v.available, v.wakeAt = s.availability(&v.PodInfo)
	if v.inUpdate() {
		var at time.Time
		v.record, v.restarting, at = restarting(pod, s.Now)
		v.restarting = v.restarting || v.pending
		if !at.IsZero() {
			v.wakeAt = at
		}
	}
}

// inUpdate reports whether an update may be changing the Pod's containers.
func (f *PodInfo) inUpdate() bool {
	return f.state == apps.StateUpdating || f.inPlaceReady.Status == corev1.ConditionFalse
}

// availability reports whether a Pod serves and, if it is ready but not for long enough,
// when it will.
func (s *Snapshot) availability(f *PodInfo) (bool, time.Time) {
	inService := f.ready && f.state == apps.StateNormal && f.inPlaceReady.Status != corev1.ConditionFalse
	if !inService {
		return false, time.Time{}
	}
	at := f.readySince.Add(s.Spec.MinReady)
	if s.Spec.MinReady > 0 && at.After(s.Now) {
		return false, at
	}
	return true, time.Time{}
}

// restarting reports whether the kubelet does not yet run what the Pod's update asked
// for, and when time alone may change that. An unreadable record never counts as done;
// then only the Pod's status decides.
func restarting(pod *corev1.Pod, now time.Time) (*inplace.State, bool, time.Time) {
	state, err := inplace.ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil {
		return nil, !inplace.RunsSpec(pod), time.Time{}
	}
	if !state.UnderWay(pod) {
		state = state.ImagesOnly()
	}
	done, at := state.Done(pod, now)
	if done {
		return &state, false, time.Time{}
	}
	return &state, true, at
}

// lifecycle is the Pod as the state machine sees it.
func (p *podState) lifecycle() lifecycle.Pod {
	return lifecycle.Pod{
		State: p.state, Labels: p.labels, Finalizers: p.finalizers,
		Scheduled: p.scheduled, UpdateDone: !p.restarting, UpdateWanted: p.chosen,
	}
}

// changing reports whether the Pod's containers are changing and it left service for
// that. A Pod that only drains for an update has changed nothing yet.
func (p *podState) changing() bool {
	return p.restarting && p.inPlaceReady.Status == corev1.ConditionFalse &&
		(p.state == apps.StateUpdating || (p.record != nil && p.record.UnderWay(p.pod)))
}

// graceOver returns when the grace period of a begun in-index update to a revision is
// over; ok is false if none has begun.
func (p *podState) graceOver(to string, grace time.Duration) (at time.Time, ok bool) {
	begun := p.inPlaceReady.Status == corev1.ConditionFalse && p.state != apps.StateUpdating && p.inPlaceReady.Message == to
	at = graceEnd(p.inPlaceReady.LastTransitionTime.Time, grace)
	if known := p.drained.Add(grace); known.After(at) {
		at = known
	}
	return at, begun
}

// graceEnd returns when a grace period ends that began in the recorded second: times on
// the wire have whole seconds, so it may have begun at the end of that second, and
// callers are promised the whole period.
func graceEnd(begun time.Time, grace time.Duration) time.Time {
	if grace <= 0 {
		return begun
	}
	return begun.Truncate(time.Second).Add(time.Second + grace)
}

func (p *podState) holds(hook lifecycle.Hook) bool { return hook.Holds(p.labels, p.finalizers) }
