// SPDX-License-Identifier: Apache-2.0

// Package finishing deletes Pods that have drained. It is a package of its own because the right to do
// so is a role of its own: without it (guard.finish of the chart), whoever asked has to come back for
// the Pod.
package finishing

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=delete
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create

// Delete deletes the Pod as it was seen, or evicts it if that was the request: one that has changed
// since, as when the request was taken back, is a conflict. pastBudget deletes it if a
// PodDisruptionBudget refuses the eviction. A request for no grace period has the Pod's own: the guard
// lets those pass, and asks for no drain. The API server's errors are returned.
func Delete(ctx context.Context, c client.Client, pod *corev1.Pod, request *usherv1alpha1.DeletionRequest, pastBudget bool) error {
	grace := request.GracePeriodSeconds
	if grace != nil && *grace < 1 {
		grace = nil
	}
	preconditions := &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}
	if request.Eviction {
		err := c.SubResource("eviction").Create(ctx, pod.DeepCopy(), &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: grace, Preconditions: preconditions},
		})
		if !pastBudget || !ofBudget(err) {
			return err
		}
	}
	return c.Delete(ctx, pod.DeepCopy(), &client.DeleteOptions{GracePeriodSeconds: grace, Preconditions: preconditions})
}

// ofBudget reports whether a PodDisruptionBudget has refused an eviction.
func ofBudget(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsTooManyRequests(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Type == policyv1.DisruptionBudgetCause })
}
