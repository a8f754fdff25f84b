// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/inplace"
	"github.com/usher-dev/usher/internal/cloneset/launch"
	"github.com/usher-dev/usher/internal/cloneset/lifecycle"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// Blocked is a Pod that waits: at a gate for a hook operator, in an update for its containers, for a
// stuck container, for the API server to let it be deleted, or, in service, for an image.
type Blocked struct {
	Pod string
	// Gate is the hook in spec.lifecycle, or one of the constants that begin with Gate.
	Gate string
	// State is the Pod's lifecycle state.
	State apps.LifecycleState
	// Keys are the labels, finalizers and readiness gates that hold it or that are missing. At other
	// gates, Keys has the reason of the kubelet, the scheduler or the API server.
	Keys []string
	// Since is when it reached the gate, or stopped being ready; zero if unknown.
	Since time.Time
	// Batch has the containers that an update in place waits for; nil if the Pod is at a gate.
	Batch *Batch
	// Stuck is the container that the Pod waits for; nil if it waits for a hook or a
	// Batch.
	Stuck *Stuck
	// Deferral is why the API server does not let it be deleted yet; nil if it does.
	Deferral *Deferral
	// Image is the image that its node lacks; nil if it waits for none.
	Image *ImageWait
	// Trial is why the API server refuses its update in place; nil if it does not.
	Trial *Trial
	// Failed is how the Pod failed soon after its creation; nil if it did not.
	Failed *Failure
	// Idle is another wait: for the scheduler, for its kubelet, for readiness gates of others to be set
	// or for finalizers to be removed; nil if there is none.
	Idle *Idle
	// SetDeleted means that the CloneSet is deleted once such Pods are gone.
	SetDeleted bool
}

// Batch is a group of a Pod's containers that are updated together, and the containers after them.
type Batch struct {
	// Containers are the containers of the group that are not ready yet.
	Containers []string
	// Next are the containers that wait for them.
	Next []string
	// Since is when they were updated; zero if unknown.
	Since time.Time
}

// String describes what the Pod waits for, and since when.
func (b Blocked) String() string {
	switch {
	case b.Batch != nil:
		return b.Batch.text(b.Pod, b.State)
	case b.Stuck != nil:
		return b.Stuck.text(b.Pod, b.Since)
	case b.Deferral != nil:
		return b.Deferral.text(b.Pod)
	case b.Image != nil:
		return b.Image.text(b.Pod, b.Since)
	case b.Trial != nil:
		return b.Trial.text(b.Pod)
	case b.Failed != nil:
		return b.Failed.text()
	case b.Idle != nil:
		return b.Idle.text(b.Pod)
	}
	what := "to let go of"
	if b.State == apps.StatePreparingNormal || b.State == apps.StateUpdated {
		what = "to set"
	}
	text := fmt.Sprintf("Pod %s is in %s and waits for the %s hook %s %s%s", b.Pod, b.State, b.Gate, what, strings.Join(b.Keys, ", "), since("", b.Since))
	if b.SetDeleted {
		text += ", before the CloneSet is deleted (to delete both without waiting, remove spec.lifecycle.preDelete)"
	}
	return text
}

// Timeless describes what the Pod waits for, but not since when: in a forecast, that time is in the
// future.
func (b Blocked) Timeless() string {
	b.Since = time.Time{}
	b.Batch = without(b.Batch, func(batch *Batch) { batch.Since = time.Time{} })
	b.Deferral = without(b.Deferral, func(d *Deferral) { d.Since = time.Time{} })
	b.Failed = without(b.Failed, func(f *Failure) { f.At = time.Time{} })
	b.Idle = without(b.Idle, func(i *Idle) { i.Since = time.Time{} })
	return b.String()
}

// without returns a copy from which drop has removed something; nil for nil.
func without[T any](one *T, drop func(*T)) *T {
	if one == nil {
		return nil
	}
	other := *one
	drop(&other)
	return &other
}

func (b *Batch) text(pod string, state apps.LifecycleState) string {
	return fmt.Sprintf("Pod %s is in %s and %s, which have a lower %s%s", pod, state, b.Wait(), apps.EnvContainerPriority, since(",", b.Since))
}

// Wait says what the Pod waits for.
func (b *Batch) Wait() string {
	return fmt.Sprintf("waits for its containers %s to be ready before it updates %s", strings.Join(b.Containers, ", "), strings.Join(b.Next, ", "))
}

// since says since when something lasts; "" if that is unknown.
func since(comma string, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return comma + " since " + at.UTC().Format(time.RFC3339)
}

// blocked returns what a Pod waits for after a pass.
func (s *Snapshot) blocked(v *podState) []Blocked {
	switch {
	case s.Deletion == LetGo, v.quiet && v.stuckOn == nil && v.idle == nil && len(s.Deferred) == 0:
		return nil
	case v.terminate:
		return s.waitsIdle(v)
	case !s.Deferred[v.pod.UID].Since.IsZero():
		d := s.Deferred[v.pod.UID]
		return []Blocked{{Pod: v.pod.Name, Gate: GateDeletion, State: v.state, Keys: []string{keyTooManyRequests}, Since: d.Since, Deferral: &d}}
	case s.Deletion == Drain && !v.preparesDelete():
		return nil
	}
	gate, keys := lifecycle.Waiting(v.lifecycle(), s.Spec.Hooks)
	waits := v.wait(gate, keys, v.waitsForBatch(s.Now))
	if len(waits) == 0 {
		waits = s.waitsIdle(v)
	}
	for i := range waits {
		waits[i].SetDeleted = s.Deletion == Drain
	}
	return waits
}

// waitsForBatch returns the containers that an update waits for before it continues with
// those of a lower launch priority; nil if it waits for none.
func (p *podState) waitsForBatch(now time.Time) *Batch {
	if !p.unfinished() || p.pending || p.state != apps.StateUpdating {
		return nil
	}
	waits, next := p.record.Waits(p.pod, now), p.record.Pending(p.pod)
	if len(waits) == 0 || len(next) == 0 {
		return nil
	}
	return &Batch{Containers: waits, Next: next, Since: p.record.BatchSince()}
}

// wait returns what the Pod waits for: the keys of a hook, containers of a higher launch priority, or a
// stuck container; nothing if it does not wait. A Pod with a stuck container may wait at a gate that
// only a ready Pod passes: then wait reports the container, not the hook.
func (p *podState) wait(gate string, keys []string, batch *Batch) []Blocked {
	stuck, failed := p.stuck(), p.failed()
	switch {
	case len(keys) == 0 && failed != nil:
		return []Blocked{*failed}
	case len(keys) == 0 && batch != nil:
		return []Blocked{{Pod: p.pod.Name, State: p.state, Since: batch.Since, Batch: batch}}
	case stuck != nil:
		return []Blocked{*stuck}
	case len(keys) > 0:
		return []Blocked{{Pod: p.pod.Name, Gate: gate, State: p.state, Keys: keys, Since: podread.StateSince(p.pod)}}
	}
	return nil
}

func byWait(a, b Blocked) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Pod, b.Pod)) }

// GateDeletion stands for a gate where a Pod waits until the API server lets it be deleted.
const GateDeletion = "deletion"

// keyTooManyRequests is the API server's reason for a deferred deletion.
const keyTooManyRequests = "TooManyRequests"

// Deferral is a deletion that was answered with 429: an admission webhook, such as Usher's guard, asks
// to try again later.
type Deferral struct {
	// Since is when the first of these answers came, Until when to try again.
	Since, Until time.Time
	// Message is the API server's.
	Message string
	// Pod is the Pod as it was then: if it has changed, its deletion may be allowed.
	Pod *corev1.Pod
}

func (d *Deferral) text(pod string) string {
	return fmt.Sprintf("Pod %s is to be deleted, and the API server asks to wait%s: %s", pod, since("", d.Since), strings.TrimSuffix(d.Message, "."))
}

// Reasons that kubelets give.
const reasonImage, reasonCrash = "ImagePullBackOff", "CrashLoopBackOff"

// GateContainer stands for a gate where a Pod waits for one of its own containers that
// cannot start or exits again and again.
const GateContainer = "container"

// Stuck is a container that keeps its Pod from getting ready, and for which waiting does not help:
// according to the kubelet it cannot start, or exits again and again.
type Stuck struct {
	// Container is its name, Image the image in the Pod's spec.
	Container, Image string
	// Reason is the kubelet's, for example ImagePullBackOff or CrashLoopBackOff.
	Reason string
}

// persistentReason returns the reason of a stuck waiting container; "" if it is not stuck.
// Of reasons that a kubelet alternates between, it returns the one that persists.
func persistentReason(waiting *corev1.ContainerStateWaiting) string {
	if launch.Holds(waiting) {
		return ""
	}
	switch reason := waiting.Reason; reason {
	case "ErrImagePull", reasonImage:
		return reasonImage
	case "RunContainerError", reasonCrash:
		return reasonCrash
	case "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "CreateContainerConfigError", "CreateContainerError":
		return reason
	}
	return ""
}

// Persistent reports whether a container that waits is stuck.
func Persistent(waiting *corev1.ContainerStateWaiting) bool { return persistentReason(waiting) != "" }

// stuckIn returns the first stuck container, init containers first; nil if none is, or
// the kubelet has not yet observed the Pod's present spec.
func stuckIn(pod *corev1.Pod) *corev1.ContainerStatus {
	if seen := pod.Status.ObservedGeneration; seen > 0 && seen < pod.Generation {
		return nil
	}
	is := func(s *corev1.ContainerStatus) bool { return stuckReason(pod, s) != "" }
	return cmp.Or(list.Find(pod.Status.InitContainerStatuses, is), list.Find(pod.Status.ContainerStatuses, is))
}

// stuckReason returns why a container is stuck; "" if it is not.
func stuckReason(pod *corev1.Pod, status *corev1.ContainerStatus) string {
	reason := ""
	waiting, crash := status.State.Waiting, crashed(status)
	switch {
	case waiting != nil:
		reason = persistentReason(waiting)
	case crash != nil:
		reason = reasonCrash // otherwise a crashing container would alternate between stuck and not
	}
	if reason != reasonCrash {
		return reason
	}
	last, known := lastUpdate(pod, status.Name)
	switch {
	case !known:
		return reason
	case waiting == nil && (last.ContainerID == "" || last.ContainerID == crash.ContainerID):
		return "" // It was ended for the update, or may have been.
	case last.ContainerID != "" && last.ContainerID == status.ContainerID:
		// If a kubelet ended a container for an update and cannot get its new image, it keeps
		// the container waiting as if the new one had crashed.
		return reasonImage
	}
	return reason
}

// crashed returns the last exit of a container that is not ready since; nil if it has not failed.
func crashed(status *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	end := status.State.Terminated
	if status.State.Running != nil {
		end = status.LastTerminationState.Terminated
	}
	if status.Ready || end == nil || end.ExitCode == 0 {
		return nil
	}
	return end
}

// lastUpdate returns the status of a container before the Pod's last update in place.
func lastUpdate(pod *corev1.Pod, container string) (inplace.ContainerStatus, bool) {
	record, err := inplace.ParseState(pod.Annotations[apps.AnnotationInPlaceUpdateState])
	if err != nil {
		return inplace.ContainerStatus{}, true // unknown
	}
	last, known := record.LastContainerStatuses[container]
	return last, known
}

// stuck returns the wait of a Pod of the update revision for a stuck container; nil if it has none. A
// Pod that is being removed does not have to get ready.
func (p *podState) stuck() *Blocked {
	leaves := p.terminate || p.ended() || p.state == apps.StatePreparingUpdate || p.state == apps.StatePreparingDelete
	status := p.stuckOn
	if leaves || !p.isUpdated || status == nil {
		return nil
	}
	found := Stuck{Container: status.Name, Image: inplace.ImageOf(p.pod, status.Name), Reason: stuckReason(p.pod, status)}
	return &Blocked{Pod: p.pod.Name, Gate: GateContainer, State: p.state, Keys: []string{found.Reason}, Since: notReadySince(p.pod), Stuck: &found}
}

// notReadySince returns since when the Pod is not ready; zero if unknown. The kubelet does not report
// since when a container waits.
func notReadySince(pod *corev1.Pod) time.Time {
	if c := podread.Condition(pod, corev1.PodReady); c != nil && c.Status != corev1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// Crashes reports whether the container starts and exits again; otherwise it does not start at all.
func (s *Stuck) Crashes() bool { return s.Reason == reasonCrash }

// Fault says what is wrong with the container.
func (s *Stuck) Fault() string {
	what := "cannot be started"
	if s.Crashes() {
		what = "keeps exiting"
	}
	return fmt.Sprintf("its container %s with image %s %s (%s)", s.Container, s.Image, what, s.Reason)
}

// text says what is wrong, and what to do.
func (s *Stuck) text(pod string, at time.Time) string {
	return fmt.Sprintf("Pod %s is not ready: %s%s; fix the template or roll it back", pod, s.Fault(), since("", at))
}
