// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// Matters reports whether a change of a Pod may change the plan.
func Matters(a, b *corev1.Pod) bool {
	if a.UID != b.UID || a.Status.PodIP != b.Status.PodIP ||
		(a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
		a.Status.HostIP != b.Status.HostIP || a.Spec.NodeName != b.Spec.NodeName ||
		!maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations) ||
		!slices.Equal(a.Finalizers, b.Finalizers) {
		return true
	}
	return answered(a, b) || differ(a, b)
}

// differ reports whether the Pod became ready for callers or stopped being so, or whether its
// own condition has changed.
func differ(a, b *corev1.Pod) bool {
	aReady, _ := Ready(a)
	bReady, _ := Ready(b)
	registered := usherv1alpha1.ConditionRegistered
	return aReady != bReady || conditionStatus(a, registered) != conditionStatus(b, registered)
}
