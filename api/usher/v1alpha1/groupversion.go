// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 contains the API group usher.dev/v1alpha1: a Registry says where
// callers find services, and a Registration says which Pods belong there.
//
// +kubebuilder:object:generate=true
// +groupName=usher.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the objects in this package.
var GroupVersion = schema.GroupVersion{Group: "usher.dev", Version: "v1alpha1"}

// AddToScheme registers the objects of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Registry{}, &RegistryList{}, &Registration{}, &RegistrationList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
