// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/plan"
	"github.com/usher-dev/usher/internal/revision"
)

// TestTakenName: a name that is taken, by a Pod that is still going or by
// anybody's, is answered with another one, a few times.
func TestTakenName(t *testing.T) {
	tests := []struct {
		name  string
		taken int
		want  string
	}{
		{"free", 0, "web-id0"},
		{"the first is taken", 1, "web-id1"},
		{"all but the last try", idTries - 1, fmt.Sprintf("web-id%d", idTries-1)},
		{"all", idTries, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var there []client.Object
			for i := range test.taken {
				there = append(there, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("web-id%d", i)}})
			}
			c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithStatusSubresource(&corev1.Pod{}).WithObjects(there...).Build()
			r := New(c, c, events.NewFakeRecorder(1), Options{})
			tries := 0
			r.NewID = func() string { tries++; return fmt.Sprintf("id%d", tries-1) }
			set := &apps.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u"}}
			made := r.perform(t.Context(), set, plan.Action{Verb: plan.Create, Revision: &revision.Revision{
				Name: "web-r1", Template: map[string]any{"spec": map[string]any{"containers": []any{}}},
			}})
			if test.want == "" {
				if !apierrors.IsAlreadyExists(made.err) || tries != idTries {
					t.Errorf("after %d tries: %v", tries, made.err)
				}
				return
			}
			if made.err != nil || made.pod.Name != test.want || "web-"+made.pod.Labels[apps.LabelInstanceID] != test.want {
				t.Fatalf("made %v: %v", made.pod, made.err)
			}
			if !slices.ContainsFunc(made.pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == apps.ConditionInPlaceUpdateReady && c.Status == corev1.ConditionTrue
			}) {
				t.Errorf("conditions %v", made.pod.Status.Conditions)
			}
		})
	}
}
