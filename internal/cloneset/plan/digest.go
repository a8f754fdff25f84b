// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"hash/maphash"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// Digest is a hash of everything that the planner reads of a Pod: an event that leaves it
// unchanged needs no pass. It leaves out what cannot change during the life of a Pod. Of
// a terminating Pod it covers only what decides the fate of its claims.
func Digest(pod *corev1.Pod) uint64 {
	var f PodInfo
	f.read(pod)
	var d digest
	d.SetSeed(digestSeed)
	add(&d, string(pod.UID), string(f.phase))
	add(&d, f.terminate)
	labels := uint64(0) // a sum, so that map order does not matter
	for key, value := range pod.Labels {
		labels += maphash.Comparable(digestSeed, [2]string{key, value})
	}
	add(&d, labels)
	for i := range pod.OwnerReferences {
		add(&d, pod.OwnerReferences[i].UID)
	}
	if !f.terminate {
		d.life(pod, &f)
	}
	return d.Sum64()
}

// life hashes what is read of a Pod that is not terminating.
func (d *digest) life(pod *corev1.Pod, f *PodInfo) {
	add(d, f.node)
	add(d, f.ready, f.able && f.Drained())
	add(d, f.readySince.Unix(), int64(f.restarts))
	for _, c := range []*corev1.PodCondition{f.inPlaceReady, f.podReady} {
		add(d, string(c.Status), c.Message)
		add(d, c.LastTransitionTime.Unix())
	}
	for _, key := range []string{
		apps.AnnotationLifecycleTimestamp, apps.AnnotationInPlaceUpdateState, apps.AnnotationInPlaceUpdateGrace, corev1.PodDeletionCost,
	} {
		add(d, pod.Annotations[key])
	}
	add(d, int64(len(pod.Finalizers)), int64(len(pod.Spec.Tolerations))) // tolerations can only be added
	add(d, pod.Finalizers...)
	if f.stuckOn != nil {
		// Without the reason: a kubelet alternates between reasons.
		add(d, f.stuckOn.Name)
	}
	if f.inUpdate() {
		d.progress(pod)
	}
}

// progress hashes what shows how far the kubelet is with an update.
func (d *digest) progress(pod *corev1.Pod) {
	add(d, pod.Generation, pod.Status.ObservedGeneration)
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		add(d, int64(len(list)))
		for i := range list {
			c := &list[i]
			add(d, c.Name, c.ImageID, c.ContainerID, c.Image)
			add(d, c.Ready, c.State.Running != nil, c.State.Waiting != nil, c.Resources != nil)
			if c.State.Waiting != nil {
				add(d, cmp.Or(persistentReason(c.State.Waiting.Reason), c.State.Waiting.Reason))
			}
			d.resources(c)
		}
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			add(d, string(c.Type), string(c.Status), c.Reason, c.Message)
		}
	}
}

// resources hashes the cpu and memory that the kubelet reports for a container.
func (d *digest) resources(c *corev1.ContainerStatus) {
	lists := []corev1.ResourceList{c.AllocatedResources}
	if c.Resources != nil {
		lists = append(lists, c.Resources.Requests, c.Resources.Limits)
	}
	for _, list := range lists {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			q := list[name]
			add(d, q.MilliValue())
		}
	}
}

// digest is a hash that differs from process to process.
type digest struct{ maphash.Hash }

var digestSeed = maphash.MakeSeed()

// add hashes values of one type.
func add[T comparable](d *digest, values ...T) {
	for _, value := range values {
		maphash.WriteComparable(&d.Hash, value)
	}
}
