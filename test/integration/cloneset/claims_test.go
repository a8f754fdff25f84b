// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/plan"
)

// offerVolumes creates volumes for claims that select them by the label story.
func (s *story) offerVolumes(count int, label string) {
	s.Helper()
	for i := range count {
		s.Make(s.Object(fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: %s-%d, labels: {story: %s}}, spec: {
			capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], persistentVolumeReclaimPolicy: Retain, hostPath: {path: /nowhere}}}`,
			s.Namespace, i, label)))
	}
}

// claims maps the names of the remaining claims to their UIDs.
func (s *story) claims() map[string]types.UID {
	s.Helper()
	var list corev1.PersistentVolumeClaimList
	s.All(&list)
	out := map[string]types.UID{}
	for _, claim := range list.Items {
		if claim.DeletionTimestamp == nil {
			out[claim.Name] = claim.UID
		}
	}
	return out
}

// paired waits until there are so many claims, and checks that each Pod has its claim from the
// template, and mounts it.
func (s *story) paired(count string) {
	s.Helper()
	s.until(count+" claims", func() bool { return fmt.Sprint(len(s.claims())) == count })
	claims := s.claims()
	for _, pod := range s.pods() {
		name := plan.ClaimName("data", "web", pod.Labels[apps.LabelInstanceID])
		if claims[name] == "" {
			s.Errorf("Pod %s has no claim %s; there are %v", pod.Name, name, slices.Sorted(maps.Keys(claims)))
		}
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == "data" && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name
		}) {
			s.Errorf("Pod %s mounts %+v", pod.Name, pod.Spec.Volumes)
		}
	}
}
