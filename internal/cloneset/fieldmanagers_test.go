// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

func record(operations ...metav1.ManagedFieldsOperationType) []metav1.ManagedFieldsEntry {
	var entries []metav1.ManagedFieldsEntry
	for _, operation := range operations {
		entries = append(entries, metav1.ManagedFieldsEntry{
			Manager: "somebody", Operation: operation, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`),
		})
	}
	return entries
}

// TestRecordIsDropped: a patch that is sent anyway drops the field managers' record, from
// the Pod as the cache keeps it and as the API server returns it. The record stays on a
// Pod that someone applies to, and on every Pod if records are to be kept.
func TestRecordIsDropped(t *testing.T) {
	const apply, update = metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate
	dropped := jsonPatch{
		{"test", "/metadata/managedFields/0/operation", string(update)},
		{"replace", "/metadata/managedFields", []any{map[string]any{}}},
	}
	move := &plan.Action{Verb: plan.Move, To: apps.StateNormal}
	for _, test := range []struct {
		name   string
		record []metav1.ManagedFieldsEntry
		action *plan.Action
		keep   bool
		want   jsonPatch
	}{
		{"written by updates", record(update, update), move, false, dropped},
		{"somebody applies", record(apply, update), move, false, nil},
		{"there is none", nil, move, false, nil},
		{"it is to be kept", record(update), move, true, nil},
		{"nothing is sent", record(update), &plan.Action{Verb: plan.Move}, false, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			answered := podWithSecret("web-a")
			answered.ManagedFields = test.record
			cached, err := shortenRecord(answered.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			for from, pod := range map[string]*corev1.Pod{"an answer": answered, "the cache": cached.(*corev1.Pod)} {
				data, err := podPatch(pod, test.action, test.keep, now)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, aboutRecord(t, data)); diff != "" {
					t.Errorf("from %s (-want +got):\n%s", from, diff)
				}
			}
		})
	}
}

// aboutRecord returns the operations of a patch that name managed fields.
func aboutRecord(t *testing.T, data []byte) jsonPatch {
	t.Helper()
	if data == nil {
		return nil
	}
	var patch jsonPatch
	if err := json.Unmarshal(data, &patch); err != nil {
		t.Fatal(err)
	}
	patch = slices.DeleteFunc(patch, func(o operation) bool {
		return o.Path != "/metadata/managedFields" && o.Path != "/metadata/managedFields/0/operation"
	})
	if len(patch) == 0 {
		return nil
	}
	return patch
}

// TestCacheKeepsNoRecord: the cache keeps only what a patch needs of a record, and Pods
// share that.
func TestCacheKeepsNoRecord(t *testing.T) {
	pod := podWithSecret("web-a")
	pod.ManagedFields = record(metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate)
	if _, err := shortenRecord(pod); err != nil {
		t.Fatal(err)
	}
	if len(pod.ManagedFields) != 1 || pod.ManagedFields[0].FieldsV1 != nil || !applied(pod) {
		t.Errorf("kept %v", pod.ManagedFields)
	}
	if other, err := shortenRecord("other"); err != nil || other != "other" {
		t.Errorf("what is no Pod becomes %v, %v", other, err)
	}
}
