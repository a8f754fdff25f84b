// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// FuzzAnnotations plans for a Pod whose annotations anybody may have written who may edit Pods: as
// long as a registry lists it, nothing lets it go.
func FuzzAnnotations(f *testing.F) {
	f.Add(`{"gate":"inPlaceUpdate","began":"2026-03-01T11:00:00Z","gone":{"nginx@discovery/services/nginx":"2026-03-01T11:00:00Z"},`+
		`"until":"2026-03-01T11:00:05Z"}`, "nginx", "2026-03-01T11:59:00Z", `{"user":"me","eviction":true}`)
	f.Add(`{"gone":null,"until":"9999-12-31T23:59:59Z"}`, ",other,", "yesterday", "{")
	f.Fuzz(func(t *testing.T, drain, registrations, entered, request string) {
		s := newFixture()
		s.add("nginx-a", appsv1alpha1.StatePreparingUpdate).registered("discovery")
		pod := s.Pods[0]
		pod.Annotations = map[string]string{
			usherv1alpha1.AnnotationDrain: drain, usherv1alpha1.AnnotationRegistrations: registrations,
			appsv1alpha1.AnnotationLifecycleTimestamp: entered, usherv1alpha1.AnnotationDeletionRequest: request,
		}
		s.Registrations[0].Spec.Drain.OnDeadline = usherv1alpha1.DeadlineBlock
		for _, patch := range Make(s.Snapshot).Patches {
			if len(patch.Released)+len(patch.RemoveFinalizers) > 0 {
				t.Errorf("it is let go: %+v", patch)
			}
			if _, err := patch.Metadata(); err != nil {
				t.Error(err)
			}
		}
	})
}
