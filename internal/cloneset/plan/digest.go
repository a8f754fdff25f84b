// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"hash/maphash"
	"slices"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
)

// Digest is a hash of everything that the planner reads of a Pod: an event that leaves it
// unchanged needs no pass. It leaves out what cannot change during the life of a Pod. Of
// a terminating Pod it covers only what decides the fate of its claims.
func Digest(pod *corev1.Pod) uint64 {
	var f PodInfo
	f.read(pod)
	read := []any{pod.UID, f.phase, f.terminate, pod.Labels}
	for i := range pod.OwnerReferences {
		read = append(read, pod.OwnerReferences[i].UID)
	}
	if !f.terminate {
		read = append(read, f.life()...)
	}
	return maphash.Bytes(digestSeed, encode.JSON(read))
}

// digestSeed makes a digest differ from process to process.
var digestSeed = maphash.MakeSeed()

// life is what is read of a Pod that is not terminating.
func (f *PodInfo) life() []any {
	read := []any{
		f.node, f.ready, f.able && f.out, f.readySince.Unix(), f.restarts,
		f.pod.Finalizers, len(f.pod.Spec.Tolerations), // tolerations can only be added
	}
	for _, c := range []*corev1.PodCondition{f.inPlaceReady, f.podReady} {
		read = append(read, c.Status, c.Message, c.LastTransitionTime)
	}
	for _, key := range []string{
		apps.AnnotationLifecycleTimestamp, apps.AnnotationInPlaceUpdateState, apps.AnnotationInPlaceUpdateGrace, corev1.PodDeletionCost,
	} {
		read = append(read, f.pod.Annotations[key])
	}
	if f.stuckOn != nil {
		// Without the reason: a kubelet alternates between reasons.
		read = append(read, f.stuckOn.Name)
	}
	if f.inUpdate() {
		read = append(read, progressOf(f.pod)...)
	}
	return read
}

// progressOf is what shows how far the kubelet is with an update.
func progressOf(pod *corev1.Pod) []any {
	read := []any{pod.Generation, pod.Status.ObservedGeneration}
	for _, c := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		read = append(read, c.Name, c.ImageID, c.ContainerID, c.Image, c.Ready, c.Resources, c.AllocatedResources, c.State.Running != nil)
		if c.State.Waiting != nil {
			read = append(read, cmp.Or(persistentReason(c.State.Waiting.Reason), c.State.Waiting.Reason))
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			read = append(read, c.Type, c.Status, c.Reason, c.Message)
		}
	}
	return read
}
