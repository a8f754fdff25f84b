// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/stage"
)

// apply creates or changes an object and returns its generation.
func (s *Scene) apply(object *unstructured.Unstructured) int64 {
	generation, err := stage.Apply(s.ctx, s.Kube(), object)
	s.Check(err)
	return generation
}

// Change merges a YAML document into the CloneSet. Containers and variables are matched
// by name; null removes a field.
func (s *Scene) Change(document string) {
	changed, err := stage.Merge(s.set, stage.CloneSet{}, document)
	s.Check(err)
	s.set = changed
	s.generation = s.apply(s.set)
}

// Image sets the image of the container main to a version of the web service: v1, v2,
// v3, or one that does not exist.
func (s *Scene) Image(version string) {
	s.Step("image %s", version)
	s.Change(fmt.Sprintf("spec: {template: {spec: {containers: [{name: main, image: %s:%s}]}}}", images.Web, version))
}

// Scale writes the scale subresource, as "kubectl scale" and autoscalers do.
func (s *Scene) Scale(pods int) {
	s.Step("scale to %d", pods)
	var err error
	s.generation, err = stage.Scale(s.ctx, s.Kube(), &appsv1alpha1.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace(), Name: SetName}}, pods)
	s.Check(err)
	// A later Change must not revert it.
	s.Check(unstructured.SetNestedField(s.set.Object, int64(pods), "spec", "replicas"))
}

// DeletePod deletes a Pod as "kubectl delete pod" does.
func (s *Scene) DeletePod(name string) {
	s.Step("delete %s", name)
	s.Check(s.Kube().Delete(s.ctx, s.pod(name)))
}

// ForceDeletePod deletes a Pod as "kubectl delete pod --grace-period=0 --force" does.
func (s *Scene) ForceDeletePod(name string) {
	s.Step("delete %s by force", name)
	s.Check(s.Kube().Delete(s.ctx, s.pod(name), client.GracePeriodSeconds(0)))
}

// Evict evicts a Pod as "kubectl drain" does.
func (s *Scene) Evict(name string) {
	s.Step("evict %s", name)
	s.Check(s.Kube().SubResource("eviction").Create(s.ctx, s.pod(name), &policyv1.Eviction{}))
}

func (s *Scene) pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace(), Name: name}}
}

// StorageClass is the class of the story's volumes.
func (s *Scene) StorageClass() string { return s.story.Name }

// LocalVolumes creates volumes from directories on the node. As there is no
// provisioner, these are the only ones.
func (s *Scene) LocalVolumes(n int) {
	kind := corev1.HostPathDirectoryOrCreate
	for i := range n {
		name := fmt.Sprintf("%s-%d", s.story.Name, i)
		s.Check(s.Kube().Create(s.ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:         corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				StorageClassName: s.StorageClass(),
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: s.session.Path("volumes", name), Type: &kind},
				},
			},
		}))
	}
}

// KillEtcd kills the story's own etcd; StartEtcd restarts it with its data.
func (s *Scene) KillEtcd() {
	s.Step("kill etcd")
	s.Check(s.session.etcds[OwnEtcd].Kill())
}

// StartEtcd undoes KillEtcd.
func (s *Scene) StartEtcd() {
	s.Step("etcd is back")
	s.Check(s.session.etcds[OwnEtcd].Restart(s.ctx))
}
