// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// State is what a story sees of its namespace.
type State struct {
	// Set and Registration are nil if they do not exist.
	Set          *appsv1alpha1.CloneSet
	Registration *usherv1alpha1.Registration
	// Pods are the set's, by name, including those being deleted.
	Pods []corev1.Pod
}

// Pod finds a Pod by its name; nil if it is gone.
func (s State) Pod(name string) *corev1.Pod {
	for i := range s.Pods {
		if s.Pods[i].Name == name {
			return &s.Pods[i]
		}
	}
	return nil
}

// In counts the Pods in a lifecycle state.
func (s State) In(state appsv1alpha1.LifecycleState) int {
	n := 0
	for _, pod := range s.Pods {
		if pod.Labels[appsv1alpha1.LabelLifecycleState] == string(state) {
			n++
		}
	}
	return n
}

// Condition returns one of the set's conditions; nil if absent.
func (s State) Condition(kind appsv1alpha1.CloneSetConditionType) *appsv1alpha1.CloneSetCondition {
	if s.Set == nil {
		return nil
	}
	for i := range s.Set.Status.Conditions {
		if s.Set.Status.Conditions[i].Type == kind {
			return &s.Set.Status.Conditions[i]
		}
	}
	return nil
}

// Unsettled returns what is missing until nothing is in progress: the controllers have
// seen the set's generation, and every Pod has the newest revision (except those of the
// partition), serves and is registered. It is empty if nothing is missing.
func (s State) Unsettled(generation int64) string {
	switch {
	case s.Set == nil:
		return "the set is not there"
	case s.Set.Generation < generation || s.Set.Status.ObservedGeneration < s.Set.Generation:
		return "Usher has not seen the set's last change"
	}
	replicas, status := *s.Set.Spec.Replicas, s.Set.Status
	if len(s.Pods) != int(replicas) {
		return fmt.Sprintf("%d Pods, want %d", len(s.Pods), replicas)
	}
	for _, pod := range s.Pods {
		if wrong := unsettledPod(&pod); wrong != "" {
			return pod.Name + " " + wrong
		}
	}
	if status.Replicas != replicas || status.AvailableReplicas != replicas || status.UpdatedAvailableReplicas < status.ExpectedUpdatedReplicas {
		return fmt.Sprintf("the status counts %d Pods, %d available, %d updated and available, want %d, %d, %d",
			status.Replicas, status.AvailableReplicas, status.UpdatedAvailableReplicas, replicas, replicas, status.ExpectedUpdatedReplicas)
	}
	return s.unregistered(replicas)
}

func unsettledPod(pod *corev1.Pod) string {
	state := pod.Labels[appsv1alpha1.LabelLifecycleState]
	switch {
	case pod.DeletionTimestamp != nil:
		return "is being deleted"
	case state != string(appsv1alpha1.StateNormal):
		return "is " + state
	case !PodReady(pod):
		return "is not ready"
	}
	return ""
}

func (s State) unregistered(replicas int32) string {
	if s.Registration == nil {
		return "the Registration is not there"
	}
	if now := s.Registration.Status; now.Registered != replicas || now.Draining != 0 {
		return fmt.Sprintf("%d Pods are registered and %d drain, want %d and none", now.Registered, now.Draining, replicas)
	}
	return ""
}

// PodReady reports whether a Pod is ready.
func PodReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// ownedBy reports whether a set of that name owns the object.
func ownedBy(object metav1.Object, name string) bool {
	ref := metav1.GetControllerOf(object)
	return ref != nil && ref.Kind == "CloneSet" && ref.Name == name
}
