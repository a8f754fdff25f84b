// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"github.com/usher-dev/usher/internal/cloneset/write"
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
	case write.Applied(pod):
		pod.ManagedFields = recordOfApplies
	case len(pod.ManagedFields) > 0:
		pod.ManagedFields = recordOfUpdates
	}
	return pod, nil
}
