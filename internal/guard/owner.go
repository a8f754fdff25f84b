// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// +kubebuilder:rbac:groups=apps,resources=daemonsets;replicasets,verbs=get
// +kubebuilder:rbac:groups=apps.kruise.io,resources=clonesets,verbs=get

// owner is a controller of Pods, with its selector.
type owner struct {
	metav1.OwnerReference
	selects labels.Selector
}

// prove returns the controller that a Pod names if an object with that UID exists and selects the Pod;
// nil if not, or if that cannot be found out. Then the Pod drains as one without a controller.
func (h *Handler) prove(ctx context.Context, pod *corev1.Pod, claim *metav1.OwnerReference) *owner {
	if claim == nil {
		return nil
	}
	selects, err := h.selectorOf(ctx, pod.Namespace, claim)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil
	case err != nil:
		log.FromContext(ctx).Error(err, "A Pod drains as if it had no controller: that cannot be read",
			"pod", pod.Namespace+"/"+pod.Name, "controller", claim.Kind+"/"+claim.Name)
		return nil
	case !selects.Matches(labels.Set(pod.Labels)):
		return nil
	}
	return &owner{*claim, selects}
}

// selectorOf reads the selector of an owner. An object with another UID is not the owner.
func (h *Handler) selectorOf(ctx context.Context, namespace string, claim *metav1.OwnerReference) (labels.Selector, error) {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(claim.APIVersion)
	object.SetKind(claim.Kind)
	if err := h.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: claim.Name}, object); err != nil {
		return nil, err
	}
	if object.GetUID() != claim.UID {
		return labels.Nothing(), nil
	}
	var of struct {
		Spec struct {
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &of); err != nil {
		return nil, err
	}
	return metav1.LabelSelectorAsSelector(of.Spec.Selector)
}
