// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// CloneSet tells Merge how lists are merged: those of a Pod by their merge keys, as
// "kubectl patch" does. The API has the template as raw JSON.
type CloneSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		appsv1alpha1.CloneSetSpec `json:",inline"`
		Template                  corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

// Merge merges YAML documents into an object of a type. A null removes.
func Merge(object *unstructured.Unstructured, kind any, documents ...string) (*unstructured.Unstructured, error) {
	merged := object.DeepCopy()
	for _, document := range documents {
		var change map[string]any
		err := yaml.UnmarshalStrict([]byte(document), &change)
		if err == nil {
			merged.Object, err = strategicpatch.StrategicMergeMapPatch(merged.Object, change, kind)
		}
		if err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, document)
		}
	}
	return merged, nil
}
