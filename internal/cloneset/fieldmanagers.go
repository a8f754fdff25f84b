// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// Of each write of a Pod, the kubelet's included, the API server spends more than
// half on the record of who has written which field (metadata.managedFields), which
// only server-side apply reads. A Pod whose record is dropped gets no new one
// until somebody applies to it. So it goes with the first patch that the
// controller sends anyway, unless somebody has applied to the Pod.

// PodCache is what a manager's cache is to hold of Pods: all but the record of
// field managers, of which it keeps whether there is one and whether somebody
// applies.
func PodCache() cache.ByObject { return cache.ByObject{Transform: shortenRecord} }

// What is kept of a record. All Pods share them.
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

// applied says that somebody applies to the Pod, who needs the record to take back
// what is applied no more. The API server puts such entries before the others.
func applied(pod *corev1.Pod) bool {
	return len(pod.ManagedFields) > 0 && pod.ManagedFields[0].Operation == metav1.ManagedFieldsOperationApply
}

// dropRecord ends the record of field managers of a Pod that nobody applies to,
// which the patch tests.
func (p *jsonPatch) dropRecord(pod *corev1.Pod) {
	if len(pod.ManagedFields) == 0 || applied(pod) {
		return
	}
	p.test("/metadata/managedFields/0/operation", metav1.ManagedFieldsOperationUpdate)
	// One empty entry stands for none; an empty list would leave them as they are.
	p.replace("/metadata/managedFields", []metav1.ManagedFieldsEntry{{}})
}
