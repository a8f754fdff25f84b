// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 contains the API group apps.kruise.io/v1alpha1. Its CloneSet is wire
// compatible with the one that OpenKruise 1.9 publishes.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the objects in this package.
var GroupVersion = schema.GroupVersion{Group: "apps.kruise.io", Version: "v1alpha1"}

// KindCloneSet is the kind in the owner references of CloneSet Pods.
var KindCloneSet = GroupVersion.WithKind("CloneSet")

// AddToScheme registers the objects of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &CloneSet{}, &CloneSetList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
