// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
)

// TestUnread: a cache keeps no annotations of kinds whose annotations Usher does not read, and of no
// kind the last applied configuration.
func TestUnread(t *testing.T) {
	for _, test := range []struct {
		object client.Object
		want   map[string]string
	}{
		{&usherv1alpha1.Registration{}, nil},
		{&usherv1alpha1.Registry{}, nil},
		{&policyv1.PodDisruptionBudget{}, nil},
		{&metav1.PartialObjectMetadata{}, nil},
		{&apps.CloneSet{}, map[string]string{"example.com/notes": "kept"}},
	} {
		given := map[string]string{"example.com/notes": "kept", corev1.LastAppliedConfigAnnotation: "{}"}
		test.object.SetAnnotations(given)
		test.object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "somebody"}})
		kept := checktest.Must(Unread(test.object))(t).(client.Object)
		checktest.Same(t, "annotations", test.want, kept.GetAnnotations())
		checktest.Same(t, "field managers", 0, len(kept.GetManagedFields()))
		checktest.Same(t, "what arrived", 2, len(given))
	}
	checktest.Same[any](t, "what is no object", "other", checktest.Must(Unread("other"))(t))
}
