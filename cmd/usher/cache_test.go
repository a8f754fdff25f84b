// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOnlyLabels: the cache keeps only a node's name and labels.
func TestOnlyLabels(t *testing.T) {
	node := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"note": "long"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
	}}
	got, err := onlyLabels(node)
	kept, ok := got.(*metav1.PartialObjectMetadata)
	if err != nil || !ok || kept.Name != "n1" || kept.Labels["zone"] != "a" || kept.Annotations != nil || kept.ManagedFields != nil {
		t.Errorf("kept %+v, %v", got, err)
	}
	if other, err := onlyLabels("other"); err != nil || other != "other" {
		t.Errorf("what is no node's metadata becomes %v, %v", other, err)
	}
}
