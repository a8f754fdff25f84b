// SPDX-License-Identifier: Apache-2.0

package write

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Applied reports whether someone applies to the Pod, who needs the record to remove
// fields that are no longer applied. The API server lists such entries first.
func Applied(pod *corev1.Pod) bool {
	return len(pod.ManagedFields) > 0 && pod.ManagedFields[0].Operation == metav1.ManagedFieldsOperationApply
}

// dropRecord removes the field managers' record of a Pod that nobody applies to; the
// patch tests this.
func (p *Patch) dropRecord(pod *corev1.Pod) {
	if len(pod.ManagedFields) == 0 || Applied(pod) {
		return
	}
	p.test("/metadata/managedFields/0/operation", metav1.ManagedFieldsOperationUpdate)
	// One empty entry means no record; an empty list would leave the record unchanged.
	p.replace("/metadata/managedFields", []metav1.ManagedFieldsEntry{{}})
}
