// SPDX-License-Identifier: Apache-2.0

package write

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Creator is the field manager that creates Pods.
const Creator = "usher"

// KeepsRecord reports whether a Pod's field managers' record is to stay: someone applies to
// the Pod, who needs it to remove fields that are no longer applied, or someone else has made
// the Pod, and may rely on it.
func KeepsRecord(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Operation == metav1.ManagedFieldsOperationApply
	}) || !slices.ContainsFunc(pod.ManagedFields, created)
}

// created reports whether an entry is that of the creation: nobody can change restartPolicy
// later.
func created(e metav1.ManagedFieldsEntry) bool {
	return e.Manager == Creator && e.FieldsV1 != nil && strings.Contains(e.FieldsV1.GetRawString(), `"f:restartPolicy"`)
}

// dropRecord removes the field managers' record of a Pod, unless it is to stay; the patch
// tests that nobody has begun to apply to the Pod, which the API server would list first.
func (p *Patch) dropRecord(pod *corev1.Pod) {
	if KeepsRecord(pod) {
		return
	}
	p.test("/metadata/managedFields/0/operation", metav1.ManagedFieldsOperationUpdate)
	// One empty entry means no record; an empty list would leave the record unchanged.
	p.replace("/metadata/managedFields", []metav1.ManagedFieldsEntry{{}})
}
