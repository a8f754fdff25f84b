// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/usher-dev/usher/internal/cloneset/write"
)

// For each write of a Pod, the kubelet's included, the API server spends more than half
// its time on the record of who wrote which field (metadata.managedFields), which only
// server-side apply reads. Once dropped, the record stays away until someone applies to
// the Pod. So the controller drops it with the first patch that it sends anyway, from Pods
// that it has made itself, unless someone has applied to the Pod.

// PodCache configures a manager's cache for Pods: everything except the field managers'
// record. Of that it keeps only whether there is one to drop.
func PodCache() cache.ByObject { return cache.ByObject{Transform: shortenRecord} }

// recordToDrop is a shortened record, shared by all Pods.
var recordToDrop = []metav1.ManagedFieldsEntry{{
	Manager: write.Creator, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:restartPolicy":{}}}`),
}}

func shortenRecord(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	if write.KeepsRecord(pod) {
		pod.ManagedFields = nil
	} else {
		pod.ManagedFields = recordToDrop
	}
	return pod, nil
}
