// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/inplace"
	"github.com/usher-dev/usher/internal/lifecycle"
	"github.com/usher-dev/usher/internal/revision"
)

// facts are what the planner reads of a Pod, and all that it reads.
type facts struct {
	state      apps.LifecycleState
	since      time.Time
	revision   string
	instance   string
	specified  bool
	cost       int
	phase      corev1.PodPhase
	terminate  bool
	scheduled  bool
	node       string
	ready      bool
	readySince time.Time
	restarts   int32
	created    time.Time
	// inPlaceReady and podReady are the conditions that the controller owns.
	inPlaceReady, podReady corev1.PodCondition
}

// podView is one Pod as a pass sees it. Steps write only the last block.
type podView struct {
	facts
	pod *corev1.Pod
	// availableAt is when a ready Pod will have been ready long enough; zero if
	// it has been, or is not ready.
	availableAt time.Time

	available  bool
	isTarget   bool // of the update revision
	updateDone bool
	spreadRank int

	chosen  bool // for an update, by partition and order
	settled bool // counted in ledger.settling if unavailable
	acted   bool // has its action in this pass
}

func readFacts(pod *corev1.Pod) facts {
	f := facts{
		state:     apps.LifecycleState(pod.Labels[apps.LabelLifecycleState]),
		revision:  podRevision(pod),
		instance:  pod.Labels[apps.LabelInstanceID],
		specified: pod.Labels[apps.LabelSpecifiedDelete] == "true",
		phase:     pod.Status.Phase,
		terminate: pod.DeletionTimestamp != nil,
		scheduled: pod.Spec.NodeName != "",
		node:      pod.Spec.NodeName,
		created:   pod.CreationTimestamp.Time,
	}
	if f.state == "" {
		f.state = apps.StateNormal
	}
	if at, err := time.Parse(time.RFC3339, pod.Annotations[apps.AnnotationLifecycleTimestamp]); err == nil {
		f.since = at
	}
	// An unreadable cost counts as 0, as it does for a ReplicaSet.
	f.cost, _ = strconv.Atoi(pod.Annotations[corev1.PodDeletionCost])
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		switch c.Type {
		case corev1.PodReady:
			f.ready, f.readySince = c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		case apps.ConditionInPlaceUpdateReady:
			f.inPlaceReady = *c
		case apps.ConditionPodReady:
			f.podReady = *c
		}
	}
	for i := range pod.Status.ContainerStatuses {
		f.restarts = max(f.restarts, pod.Status.ContainerStatuses[i].RestartCount)
	}
	return f
}

func podRevision(pod *corev1.Pod) string {
	if long := pod.Labels[apps.LabelRevision]; long != "" {
		return long
	}
	return pod.Labels[apps.LabelTemplateHash]
}

// active says that the Pod holds a place in the set: it runs or will, and is
// not on its way out of the cluster.
func (f *facts) active() bool { return !f.terminate && !f.ended() }

// ended says that the Pod will never run again: it failed, was evicted, or its
// containers finished.
func (f *facts) ended() bool { return f.phase == corev1.PodFailed || f.phase == corev1.PodSucceeded }

// view reads a Pod for one pass.
func (s *Snapshot) view(pod *corev1.Pod) *podView {
	v := &podView{facts: readFacts(pod), pod: pod}
	v.isTarget = revision.Same(v.revision, s.Update.Name)
	v.available, v.availableAt = s.availability(&v.facts)
	if v.state == apps.StateUpdating {
		v.updateDone = updateDone(pod)
	}
	return v
}

// availability says whether a Pod serves, and if it is ready but not for long
// enough, when it will.
func (s *Snapshot) availability(f *facts) (bool, time.Time) {
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

// updateDone says that the kubelet runs what the Pod's update asked for. A
// record that cannot be read never passes for done.
func updateDone(pod *corev1.Pod) bool {
	state, err := inplace.ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	return err == nil && state.Done(pod)
}

// graceOver says when the grace period of an in-place update to a revision that
// has begun is over; ok is false if none has begun.
func (p *podView) graceOver(to string, grace time.Duration) (at time.Time, ok bool) {
	begun := p.inPlaceReady.Status == corev1.ConditionFalse && p.state != apps.StateUpdating &&
		p.inPlaceReady.Message == to
	return p.inPlaceReady.LastTransitionTime.Add(grace), begun
}

func (p *podView) holds(hook lifecycle.Hook) bool { return hook.Holds(p.pod.Labels, p.pod.Finalizers) }

// Digest is a hash of all that the planner reads of a Pod: an event that leaves
// it unchanged needs no pass.
func Digest(pod *corev1.Pod) uint64 {
	f := readFacts(pod)
	h := fnv.New64a()
	text := func(values ...string) {
		for _, value := range values {
			h.Write([]byte(value)) //nolint:errcheck // a hash never fails
			h.Write([]byte{0})     //nolint:errcheck // a hash never fails
		}
	}
	number := func(values ...int64) {
		for _, value := range values {
			h.Write(binary.LittleEndian.AppendUint64(nil, uint64(value))) //nolint:errcheck,gosec // a hash never fails, and wraps as it likes
		}
	}
	flag := func(values ...bool) {
		for _, value := range values {
			text(strconv.FormatBool(value))
		}
	}
	text(string(pod.UID), string(f.phase), f.node)
	flag(f.terminate, f.ready)
	number(f.readySince.Unix(), int64(f.restarts))
	for _, c := range []corev1.PodCondition{f.inPlaceReady, f.podReady} {
		text(string(c.Status), c.Message)
		number(c.LastTransitionTime.Unix())
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Labels)) {
		text(key, pod.Labels[key])
	}
	text("")
	for _, key := range []string{
		apps.AnnotationLifecycleTimestamp, apps.AnnotationInPlaceUpdateState, apps.AnnotationInPlaceUpdateGrace, corev1.PodDeletionCost,
	} {
		text(pod.Annotations[key])
	}
	text(pod.Finalizers...)
	for i := range pod.OwnerReferences {
		text(string(pod.OwnerReferences[i].UID))
	}
	if f.state == apps.StateUpdating {
		flag(updateDone(pod))
	}
	return h.Sum64()
}
