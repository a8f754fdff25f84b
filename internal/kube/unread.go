// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// Unread is a cache's transform. It drops fields that Usher never reads and that can be as large as the
// rest of the object: the managed fields, the last applied configuration and, for kinds whose
// annotations Usher does not read, all annotations.
func Unread(object any) (any, error) {
	found, ok := object.(client.Object)
	if !ok {
		return object, nil
	}
	// An object that is in the cache already has none, and must not be changed.
	if found.GetManagedFields() != nil {
		found.SetManagedFields(nil)
	}
	annotations := found.GetAnnotations()
	switch found.(type) {
	case *usherv1alpha1.Registration, *usherv1alpha1.Registry, *policyv1.PodDisruptionBudget, *metav1.PartialObjectMetadata:
		if annotations != nil {
			found.SetAnnotations(nil)
		}
		return object, nil
	}
	if _, applied := annotations[corev1.LastAppliedConfigAnnotation]; applied {
		others := maps.Clone(annotations)
		delete(others, corev1.LastAppliedConfigAnnotation)
		found.SetAnnotations(others)
	}
	return object, nil
}
