// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// Digest is a hash of everything that the planner reads of a Pod: an event that leaves it
// unchanged needs no pass. It leaves out what cannot change during the life of a Pod. Of
// a terminating Pod it covers only what decides the fate of its claims.
func Digest(pod *corev1.Pod) uint64 {
	var f PodInfo
	f.read(pod)
	d := newDigest()
	d.text(string(pod.UID), string(f.phase))
	d.flag(f.terminate)
	labels := uint64(0) // a sum, so that map order does not matter
	for key, value := range pod.Labels {
		one := newDigest()
		one.text(key, value)
		labels += uint64(one)
	}
	d.number(int64(labels), int64(len(pod.Labels))) // overflow is harmless in a hash
	for i := range pod.OwnerReferences {
		d.text(string(pod.OwnerReferences[i].UID))
	}
	if !f.terminate {
		d.life(pod, &f)
	}
	return uint64(d)
}

// life hashes what is read of a Pod that is not terminating.
func (d *digest) life(pod *corev1.Pod, f *PodInfo) {
	d.text(f.node)
	d.flag(f.ready)
	d.number(f.readySince.Unix(), int64(f.restarts))
	for _, c := range []*corev1.PodCondition{f.inPlaceReady, f.podReady} {
		d.text(string(c.Status), c.Message)
		d.number(c.LastTransitionTime.Unix())
	}
	for _, key := range []string{
		apps.AnnotationLifecycleTimestamp, apps.AnnotationInPlaceUpdateState, apps.AnnotationInPlaceUpdateGrace, corev1.PodDeletionCost,
	} {
		d.text(pod.Annotations[key])
	}
	d.number(int64(len(pod.Finalizers)), int64(len(pod.Spec.Tolerations))) // tolerations can only be added
	d.text(pod.Finalizers...)
	if f.stuckOn != nil {
		// Without the reason: a kubelet alternates between reasons.
		d.text(f.stuckOn.Name)
	}
	if f.inUpdate() {
		d.progress(pod)
	}
}

// progress hashes what shows how far the kubelet is with an update.
func (d *digest) progress(pod *corev1.Pod) {
	d.number(pod.Generation, pod.Status.ObservedGeneration)
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		d.number(int64(len(list)))
		for i := range list {
			c := &list[i]
			d.text(c.Name, c.ImageID, c.ContainerID, c.Image)
			d.flag(c.Ready, c.State.Running != nil, c.State.Waiting != nil, c.Resources != nil)
			if c.State.Waiting != nil {
				d.text(cmp.Or(persistentReason(c.State.Waiting.Reason), c.State.Waiting.Reason))
			}
			d.resources(c)
		}
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			d.text(string(c.Type), string(c.Status), c.Reason, c.Message)
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
			d.number(q.MilliValue())
		}
	}
}

// digest is an FNV-1a hash; that of hash/fnv would cost an allocation for each event.
type digest uint64

const (
	fnvOffset digest = 14695981039346656037
	fnvPrime  digest = 1099511628211
)

func newDigest() digest { return fnvOffset }

func (d *digest) octet(b byte) { *d = (*d ^ digest(b)) * fnvPrime }

// text ends each value with a byte that occurs in no UTF-8 text.
func (d *digest) text(values ...string) {
	for _, value := range values {
		for i := range len(value) {
			d.octet(value[i])
		}
		d.octet(0xff)
	}
}

func (d *digest) number(values ...int64) {
	for _, value := range values {
		for shift := 0; shift < 64; shift += 8 {
			d.octet(byte(value >> shift)) // one octet of eight
		}
	}
}

func (d *digest) flag(values ...bool) {
	for _, value := range values {
		d.octet(byte(one(value)))
	}
}
