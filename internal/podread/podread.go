// SPDX-License-Identifier: Apache-2.0

// Package podread has the readings of a Pod that all packages share.
package podread

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
)

// Addresses returns all addresses of a Pod that has several; nil if it has one, which is in
// status.podIP.
func Addresses(pod *corev1.Pod) []corev1.PodIP {
	if len(pod.Status.PodIPs) < 2 {
		return nil
	}
	return pod.Status.PodIPs
}

// Condition returns a pointer to a condition in the Pod; nil if the Pod lacks it.
func Condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	return list.Find(pod.Status.Conditions, func(c *corev1.PodCondition) bool { return c.Type == kind })
}

// Status returns the status of a condition; Unknown if the Pod lacks it.
func Status(pod *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	return ptr.Deref(Condition(pod, kind), corev1.PodCondition{Status: corev1.ConditionUnknown}).Status
}

// IsTrue reports whether the Pod has a condition that is True.
func IsTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return Status(pod, kind) == corev1.ConditionTrue
}

// Since returns when a condition last changed; zero if the Pod lacks it.
func Since(pod *corev1.Pod, kind corev1.PodConditionType) time.Time {
	return ptr.Deref(Condition(pod, kind), corev1.PodCondition{}).LastTransitionTime.Time
}

// StateSince returns when the Pod reached its lifecycle state; zero if it does not show that.
func StateSince(pod *corev1.Pod) time.Time {
	at, _ := time.Parse(time.RFC3339, pod.Annotations[apps.AnnotationLifecycleTimestamp]) // zero if it fails
	return at
}

// DeletedSince returns when the Pod was deleted; zero if it was not. Its deletion timestamp is the end
// of its grace period.
func DeletedSince(pod *corev1.Pod) time.Time {
	if pod.DeletionTimestamp == nil {
		return time.Time{}
	}
	return pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
}

// OwnClaims returns the Pod's volumes that are claims of its own: their names end with the Pod's. A
// CloneSet that has released a Pod, or lost it to another controller, takes these claims over when the
// Pod is gone.
func OwnClaims(pod *corev1.Pod) []corev1.Volume {
	return list.Only(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && strings.HasSuffix(v.PersistentVolumeClaim.ClaimName, "-"+pod.Name)
	})
}
