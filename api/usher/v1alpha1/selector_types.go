// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelSelector is metav1.LabelSelector with bounds.
type LabelSelector struct {
	// MatchLabels are labels that an object must have.
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(key, !format.qualifiedName().validate(key).hasValue())",message="each key must be a label key such as app or example.com/app"
	// +optional
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`
	// MatchExpressions are requirements that an object's labels must meet.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelValue is the value of a label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
type LabelValue string

// LabelSelectorRequirement is metav1.LabelSelectorRequirement with bounds.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",message="the operators In and NotIn need values, Exists and DoesNotExist take none",fieldPath=".values"
type LabelSelectorRequirement struct {
	// Key is the label's key.
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	Key string `json:"key"`
	// Operator relates the key to the values: In, NotIn, Exists or DoesNotExist.
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`
	// Values are the values for In and NotIn. Exists and DoesNotExist take none.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Values []LabelValue `json:"values,omitempty"`
}

// Selects reports whether the Registration selects Pods with these labels. One without a
// selector, as the API server accepts none, selects nothing.
func (r *Registration) Selects(labels map[string]string) bool {
	s := &r.Spec.Selector
	return len(s.MatchLabels)+len(s.MatchExpressions) > 0 && s.Matches(labels)
}

// Matches reports whether labels meet all requirements.
func (s *LabelSelector) Matches(labels map[string]string) bool {
	for key, value := range s.MatchLabels {
		if have, ok := labels[key]; !ok || have != string(value) {
			return false
		}
	}
	return !slices.ContainsFunc(s.MatchExpressions, func(e LabelSelectorRequirement) bool { return !e.met(labels) })
}

func (e LabelSelectorRequirement) met(labels map[string]string) bool {
	value, exists := labels[e.Key]
	among := exists && slices.Contains(e.Values, LabelValue(value))
	switch e.Operator {
	case metav1.LabelSelectorOpIn:
		return among
	case metav1.LabelSelectorOpNotIn:
		return !among
	case metav1.LabelSelectorOpExists:
		return exists
	case metav1.LabelSelectorOpDoesNotExist:
		return !exists
	}
	return false
}
