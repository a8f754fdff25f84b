// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/podread"
)

// Slim returns a Pod with what plans are made from, and no more: for Pods of other
// controllers, of which a cluster may have many. It shares maps and lists with the Pod. Its one
// container has all named ports.
func Slim(pod *corev1.Pod) *corev1.Pod {
	short := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Generation: pod.Generation,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			Labels: pod.Labels, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences, Finalizers: pod.Finalizers,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, ServiceAccountName: pod.Spec.ServiceAccountName, ReadinessGates: pod.Spec.ReadinessGates,
			Volumes: podread.OwnClaims(pod),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, HostIP: pod.Status.HostIP},
	}
	var ports []corev1.ContainerPort
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			if port.Name != "" {
				ports = append(ports, corev1.ContainerPort{Name: port.Name, ContainerPort: port.ContainerPort})
			}
		}
	}
	if len(ports) > 0 {
		short.Spec.Containers = []corev1.Container{{Ports: ports}}
	}
	short.Status.Conditions = slices.Clip(list.Only(pod.Status.Conditions, func(c corev1.PodCondition) bool { return readsCondition(pod, c.Type) }))
	return short
}

// readsCondition reports whether plans depend on a condition of a Pod.
func readsCondition(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	switch kind {
	case corev1.PodReady, corev1.ContainersReady, usherv1alpha1.ConditionRegistered:
		return true
	}
	return slices.Contains(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: kind})
}
