// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StorageClass is the class of the story's volumes.
func (s *Scene) StorageClass() string { return s.story.Name }

// LocalVolumes creates volumes from directories on the node. As there is no
// provisioner, these are the only ones.
func (s *Scene) LocalVolumes(n int) {
	kind := corev1.HostPathDirectoryOrCreate
	for i := range n {
		name := fmt.Sprintf("%s-%d", s.story.Name, i)
		s.Check(s.session.kube.Create(s.ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:         corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				StorageClassName: s.StorageClass(),
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: s.session.path("volumes", name), Type: &kind},
				},
			},
		}))
	}
}
