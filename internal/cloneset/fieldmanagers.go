// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// For each write of a Pod, the kubelet's included, the API server spends more than half
// its time on the record of who wrote which field (metadata.managedFields), which only
// server-side apply reads. Once dropped, the record stays away until someone applies to
// the Pod. So the controller drops it with the first patch that it sends anyway, unless
// someone has applied to the Pod.

// PodCache configures a manager's cache for Pods: everything except the field managers'
// record. Of that it keeps only whether there is one and whether someone applies.
func PodCache() cache.ByObject { return cache.ByObject{Transform: shortenRecord} }

// The shortened records, shared by all Pods.
var (
	recordOfUpdates = []metav1.ManagedFieldsEntry{{Operation: metav1.ManagedFieldsOperationUpdate}}
	recordOfApplies = []metav1.ManagedFieldsEntry{{Operation: metav1.ManagedFieldsOperationApply}}
)

func shortenRecord(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	switch {
	case applied(pod):
		pod.ManagedFields = recordOfApplies
	case len(pod.ManagedFields) > 0:
		pod.ManagedFields = recordOfUpdates
	}
	return pod, nil
}

// applied reports whether someone applies to the Pod, who needs the record to remove
// fields that are no longer applied. The API server lists such entries first.
func applied(pod *corev1.Pod) bool {
	return len(pod.ManagedFields) > 0 && pod.ManagedFields[0].Operation == metav1.ManagedFieldsOperationApply
}

// dropRecord removes the field managers' record of a Pod that nobody applies to; the
// patch tests this.
func (p *jsonPatch) dropRecord(pod *corev1.Pod) {
	if len(pod.ManagedFields) == 0 || applied(pod) {
		return
	}
	p.test("/metadata/managedFields/0/operation", metav1.ManagedFieldsOperationUpdate)
	// One empty entry means no record; an empty list would leave the record unchanged.
	p.replace("/metadata/managedFields", []metav1.ManagedFieldsEntry{{}})
}
