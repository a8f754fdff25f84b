// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// Orphan stands for the owner of an object without a controller.
const Orphan = "orphan"

// OwnerOf is the UID of the object's controller.
func OwnerOf(object client.Object) string {
	if owner := metav1.GetControllerOf(object); owner != nil {
		return string(owner.UID)
	}
	return Orphan
}

// State is a Pod's state in its life in a CloneSet.
func State(pod client.Object) apps.LifecycleState {
	if s := apps.LifecycleState(pod.GetLabels()[apps.LabelLifecycleState]); s != "" {
		return s
	}
	return apps.StateNormal
}

// Active reports whether a Pod has neither ended nor is being deleted.
func Active(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded
}

// Condition is a condition of a Pod; the zero condition if there is none of that type.
func Condition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return pod.Status.Conditions[i]
		}
	}
	return corev1.PodCondition{}
}

// SetCondition writes a condition as a kubelet does.
func SetCondition(pod *corev1.Pod, kind corev1.PodConditionType, yes bool, now time.Time) {
	status := corev1.ConditionFalse
	if yes {
		status = corev1.ConditionTrue
	}
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind})
		i = len(pod.Status.Conditions) - 1
	}
	if c := &pod.Status.Conditions[i]; c.Status != status {
		c.Status, c.LastTransitionTime = status, seconds(now)
	}
}

// seconds is a time as the API stores it.
func seconds(at time.Time) metav1.Time { return metav1.NewTime(at.Truncate(time.Second)) }

// ContainerStatus is the status of a container; the zero status if there is none.
func ContainerStatus(pod *corev1.Pod, name string) corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == name {
			return pod.Status.ContainerStatuses[i]
		}
	}
	return corev1.ContainerStatus{}
}

// gatesOpen reports whether all readiness gates of a Pod are True.
func gatesOpen(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool {
		return Condition(pod, g.ConditionType).Status != corev1.ConditionTrue
	})
}
