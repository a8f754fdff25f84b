// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/launch"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/cloneset/revision"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// PodInfo holds what is read of one version of a Pod, independent of its set. It is kept between
// passes: to read an unchanged Pod again would cost more than everything else in a pass, because the
// Pods of a large set are scattered in memory.
type PodInfo struct {
	pod        *corev1.Pod
	state      apps.LifecycleState
	revision   string
	hash       string // of the revision
	phase      corev1.PodPhase
	terminate  bool
	specified  bool
	scheduled  bool
	ready      bool
	readySince time.Time // zero unless ready
	// able means that all containers are ready, whatever the readiness gates say.
	able bool
	// out means that its condition takes the Pod out of service for an update; quiet, that the Pod is
	// Normal and has the conditions of that state.
	out, quiet bool
	cost       int
	node       string
	restarts   int32
	created    time.Time
	labels     map[string]string
	finalizers []string
	// selector and matched are the last argument and answer of Matches.
	selector string
	matched  bool
	// inPlaceReady and podReady are the conditions that the controller owns, never nil. The gates
	// report whether the Pod's readiness depends on them.
	inPlaceReady, podReady         *corev1.PodCondition
	inPlaceReadyGate, podReadyGate bool
	// launch is what containers wait for that have not been allowed to start; nil if all have.
	launch *launch.Wait
	// stuckOn is the container that is stuck; nil if none is.
	stuckOn *corev1.ContainerStatus
	// idle is a wait of the Pod that its set cannot end; nil if there is none.
	idle *Idle
	// record is the record of an update that may be under way; nil if there is none, or it cannot be
	// read.
	record *inplace.State
}

// ReadPods reads Pods. It reuses the PodInfo of the very same object: a Pod that has been read never
// changes. Both lists are in name order; Pods out of order are read again.
func ReadPods(pods []*corev1.Pod, before []*PodInfo) []*PodInfo {
	out := make([]*PodInfo, len(pods))
	for i, pod := range pods {
		for len(before) > 0 && before[0].pod != pod && before[0].pod.Name < pod.Name {
			before = before[1:]
		}
		if len(before) > 0 && before[0].pod == pod {
			out[i], before = before[0], before[1:]
			continue
		}
		// Allocate each one separately: in a shared allocation, one surviving Pod would
		// retain the old versions of all others.
		out[i] = newPodInfo(pod)
	}
	return out
}

func newPodInfo(pod *corev1.Pod) *PodInfo {
	info := &PodInfo{}
	info.read(pod)
	if info.inUpdate() {
		info.readRecord()
	}
	return info
}

// Pod returns the Pod that was read.
func (f *PodInfo) Pod() *corev1.Pod { return f.pod }

// Revision returns the revision that the Pod's labels name, in its long form if present; "" if they
// name none.
func (f *PodInfo) Revision() string { return f.revision }

// State returns the Pod's lifecycle state from its label; Normal without one.
func (f *PodInfo) State() apps.LifecycleState { return f.state }

// Terminating reports whether the Pod is terminating.
func (f *PodInfo) Terminating() bool { return f.terminate }

// Drained reports whether the Pod's condition says that it is out of service for an
// update.
func (f *PodInfo) Drained() bool { return f.out }

// Matches reports whether a selector matches the Pod's labels; text is the selector's String. It
// remembers the last answer.
func (f *PodInfo) Matches(selector labels.Selector, text string) bool {
	if f.selector != text {
		f.selector, f.matched = text, selector.Matches(labels.Set(f.labels))
	}
	return f.matched
}

// noCondition stands for a missing condition.
var noCondition corev1.PodCondition

func (f *PodInfo) read(pod *corev1.Pod) {
	f.pod = pod
	f.labels, f.finalizers = pod.Labels, pod.Finalizers
	f.state = cmp.Or(apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]), apps.StateNormal)
	f.revision = RevisionOf(pod)
	f.hash = revision.Short(f.revision)
	f.specified = pod.Labels[apps.LabelSpecifiedDelete] == "true"
	f.created, f.phase, f.terminate = pod.CreationTimestamp.Time, pod.Status.Phase, pod.DeletionTimestamp != nil
	f.node, f.scheduled = pod.Spec.NodeName, pod.Spec.NodeName != ""
	f.cost, _ = strconv.Atoi(pod.Annotations[corev1.PodDeletionCost]) // an unreadable cost counts as 0, as in a ReplicaSet
	f.readConditions(pod)
	for i := range pod.Status.ContainerStatuses {
		f.restarts = max(f.restarts, pod.Status.ContainerStatuses[i].RestartCount)
	}
	f.launch = launch.Of(pod)
	f.quiet = f.quiet && f.launch == nil
	f.stuckOn = stuckIn(pod)
	f.idle = readIdle(f)
}

func (f *PodInfo) readConditions(pod *corev1.Pod) {
	if c := podread.Condition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		f.ready, f.readySince = true, c.LastTransitionTime.Time
	}
	f.able = podread.IsTrue(pod, corev1.ContainersReady)
	f.inPlaceReady = cmp.Or(podread.Condition(pod, apps.ConditionInPlaceUpdateReady), &noCondition)
	f.podReady = cmp.Or(podread.Condition(pod, apps.ConditionPodReady), &noCondition)
	gates := pod.Spec.ReadinessGates
	f.inPlaceReadyGate = slices.Contains(gates, corev1.PodReadinessGate{ConditionType: apps.ConditionInPlaceUpdateReady})
	f.podReadyGate = slices.Contains(gates, corev1.PodReadinessGate{ConditionType: apps.ConditionPodReady})
	f.out = f.inPlaceReady.Status == corev1.ConditionFalse
	f.quiet = !f.ended() && f.state == apps.StateNormal && isOn(f.inPlaceReady, f.inPlaceReadyGate) && isOn(f.podReady, f.podReadyGate)
}

// isOn reports whether a condition is True, or missing where no readiness gate asks for it.
func isOn(c *corev1.PodCondition, gate bool) bool {
	return c.Status == corev1.ConditionTrue || c.Status == "" && !gate
}

// RevisionOf returns the name, or the hash, of the Pod's revision.
func RevisionOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Labels[apps.LabelRevision], pod.Labels[apps.LabelTemplateHash])
}

// readRecord reads the record of the Pod's update, which takes longer than all the rest.
func (f *PodInfo) readRecord() {
	record, err := inplace.ParseState(f.pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil {
		return
	}
	if !record.UnderWay(f.pod) {
		record.Resources, record.NextContainerImages, record.NextContainerResources = nil, nil, nil // it asks for no more writes
	}
	f.record = &record
}

// podState is one Pod as a pass sees it. Steps write only the last block, and the state.
type podState struct {
	*PodInfo
	// state and specified are the PodInfo's until a step changes them.
	state     apps.LifecycleState
	specified bool
	// wakeAt is when time alone changes the podState; zero if it does not.
	wakeAt time.Time

	isUpdated  bool // has the update revision
	pending    bool // its revision label came before its containers, as OpenKruise does it
	restarting bool // the kubelet does not yet run what an update asked for
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
	// impossible means that the API server refuses the change in place as such
	impossible bool
	leaving    bool // being removed, and still holding a place
	removed    bool // its removal was decided in this pass
	acted      bool // has its action in this pass
	action     int  // its index in the plan
	moved      bool // that action changes its state
	fixed      bool // no other action may replace it
	evidence   bool // it came to nothing, and stays to be looked at
	deferred   bool // the API server has asked to wait before it is deleted
}

// active reports whether the Pod holds a place in the set: it runs or will, and is not
// terminating.
func (f *PodInfo) active() bool { return !f.terminate && !f.ended() }

// ended reports whether the Pod will never run again: it failed, was evicted, or its
// containers finished.
func (f *PodInfo) ended() bool { return f.phase == corev1.PodFailed || f.phase == corev1.PodSucceeded }

// preparesDelete reports whether the Pod is at the gate before its deletion.
func (p *podState) preparesDelete() bool { return p.state == apps.StatePreparingDelete }

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
	v.PodInfo, v.state, v.specified = info, info.state, info.specified
	if len(s.Deferred) > 0 {
		v.deferred = s.Now.Before(s.Deferred[pod.UID].Until)
	}
	if v.out {
		v.drained = s.Drained[pod.UID]
	}
	v.pending = v.state == apps.StateUpdating && pod.Annotations[apps.AnnotationInPlaceUpdateGrace] != ""
	v.isUpdated = info.revision != "" && info.hash == revision.Short(s.Update.Name) && !v.pending
	v.available, v.wakeAt = s.availability(info)
	if v.inUpdate() {
		s.readUpdate(v, pod)
	}
}

// readUpdate reads how far the Pod's update is. Without a readable record only the Pod's status decides.
func (s *Snapshot) readUpdate(v *podState, pod *corev1.Pod) {
	done, at := inplace.RunsSpec(pod), time.Time{}
	if v.record != nil {
		done, at = v.record.Done(pod, s.Now)
	}
	v.restarting = !done || v.pending
	if !done && !at.IsZero() {
		v.wakeAt = at
	}
}

// inUpdate reports whether an update may be changing the Pod's containers.
func (f *PodInfo) inUpdate() bool { return f.state == apps.StateUpdating || f.out }

// availability reports whether a Pod serves and, if it is ready but not for long enough,
// when it will.
func (s *Snapshot) availability(f *PodInfo) (bool, time.Time) {
	inService := f.ready && f.state == apps.StateNormal && !f.out
	if !inService {
		return false, time.Time{}
	}
	at := f.readySince.Add(s.Spec.MinReady)
	if s.Spec.MinReady > 0 && at.After(s.Now) {
		return false, at
	}
	return true, time.Time{}
}

// lifecycle returns the Pod as the state machine sees it.
func (p *podState) lifecycle() lifecycle.Pod {
	return lifecycle.Pod{
		State: p.state, Labels: p.labels, Finalizers: p.finalizers,
		Scheduled: p.scheduled, UpdateDone: !p.restarting, UpdateWanted: p.chosen,
	}
}

// changing reports whether the Pod's containers are changing and it left service for
// that. A Pod that only drains for an update has changed nothing yet.
func (p *podState) changing() bool {
	return p.restarting && p.out &&
		(p.state == apps.StateUpdating || (p.record != nil && p.record.UnderWay(p.pod)))
}

// graceOver returns when the grace period of a begun in-place update to a revision is
// over; ok is false if none has begun.
func (p *podState) graceOver(to string, grace time.Duration) (at time.Time, ok bool) {
	begun := p.out && p.state != apps.StateUpdating && p.inPlaceReady.Message == to
	return list.Latest(graceEnd(p.inPlaceReady.LastTransitionTime.Time, grace), p.drained.Add(grace)), begun
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

// Alike reports whether the planner reads the same of two versions of a Pod: an event between them
// needs no pass. Of a terminating Pod that is only what decides the fate of its claims.
func Alike(a, b *corev1.Pod) bool {
	var was, is PodInfo
	was.read(a)
	is.read(b)
	sameOwner := func(a, b metav1.OwnerReference) bool { return a.UID == b.UID }
	return a.UID == b.UID && was.phase == is.phase && was.terminate == is.terminate && maps.Equal(a.Labels, b.Labels) &&
		slices.EqualFunc(a.OwnerReferences, b.OwnerReferences, sameOwner) && (is.terminate || was.livesAs(&is))
}

// livesAs is Alike for two versions of a Pod that is not terminating.
func (f *PodInfo) livesAs(is *PodInfo) bool {
	return f.life() == is.life() && slices.Equal(f.finalizers, is.finalizers) &&
		(!f.inUpdate() || equality.Semantic.DeepEqual(progressOf(f.pod), progressOf(is.pod)))
}

// life holds most of what is read of a Pod that is not terminating, except what cannot change during
// its life.
type life struct {
	node, stuckOn, idle   string
	launch                string
	ready, able           bool
	readySince            int64 // Unix time; on the wire, times have whole seconds
	restarts, tolerations int   // tolerations can only be added
	conditions            [2]struct {
		status  corev1.ConditionStatus
		message string
		since   int64
	}
	annotations [4]string
}

func (f *PodInfo) life() life {
	l := life{
		node: f.node, ready: f.ready, able: f.able && f.out, readySince: f.readySince.Unix(), restarts: int(f.restarts), tolerations: len(f.pod.Spec.Tolerations),
		idle:    f.idle.life(),
		stuckOn: ptr.Deref(f.stuckOn, corev1.ContainerStatus{}).Name, // without the reason: a kubelet alternates between reasons
	}
	if f.launch != nil {
		l.launch = f.launch.String()
	}
	for i, c := range []*corev1.PodCondition{f.inPlaceReady, f.podReady} {
		l.conditions[i].status, l.conditions[i].message, l.conditions[i].since = c.Status, c.Message, c.LastTransitionTime.Unix()
	}
	for i, key := range []string{
		apps.AnnotationLifecycleTimestamp, apps.AnnotationInPlaceUpdateState, apps.AnnotationInPlaceUpdateGrace, corev1.PodDeletionCost,
	} {
		l.annotations[i] = f.pod.Annotations[key]
	}
	return l
}

// progressOf returns the fields that show how far the kubelet is with an update.
func progressOf(pod *corev1.Pod) []any {
	read := []any{pod.Generation, pod.Status.ObservedGeneration}
	for _, c := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		read = append(read, c.Name, c.ImageID, c.ContainerID, c.Image, c.Ready, c.Resources, c.AllocatedResources, c.State.Running != nil)
		if c.State.Waiting != nil {
			read = append(read, cmp.Or(persistentReason(c.State.Waiting), c.State.Waiting.Reason))
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			read = append(read, c.Type, c.Status, c.Reason, c.Message)
		}
	}
	return read
}
