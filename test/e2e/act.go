// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/images"
)

const fieldManager = "usher-e2e"

// apply creates or changes an object as "kubectl apply --server-side" does, and
// returns its generation.
func (s *Scene) apply(object *unstructured.Unstructured) int64 {
	applied := object.DeepCopy()
	err := s.session.kube.Apply(s.ctx, client.ApplyConfigurationFromUnstructured(applied),
		client.FieldOwner(fieldManager), client.ForceOwnership)
	if err != nil {
		s.Check(fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err))
	}
	return applied.GetGeneration()
}

// Change merges a YAML document into the CloneSet. Containers and variables are matched
// by name; null removes a field.
func (s *Scene) Change(document string) {
	changed, err := merge(s.set.Object, document)
	s.Check(err)
	s.set.Object = changed
	s.generation = s.apply(s.set)
}

// Image sets the image of the container main to a version of the web service: v1, v2,
// v3, or one that does not exist.
func (s *Scene) Image(version string) {
	s.Step("image %s", version)
	s.Change(fmt.Sprintf("spec: {template: {spec: {containers: [{name: main, image: %s:%s}]}}}", images.Web, version))
}

// Scale writes the scale subresource, as "kubectl scale" and autoscalers do.
func (s *Scene) Scale(pods int32) {
	s.Step("scale to %d", pods)
	set := &appsv1alpha1.CloneSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace(), Name: SetName}}
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: pods}}
	scale.Namespace, scale.Name = set.Namespace, set.Name
	s.Check(s.session.kube.SubResource("scale").Update(s.ctx, set, client.WithSubResourceBody(scale)))
	s.Check(s.session.kube.Get(s.ctx, client.ObjectKeyFromObject(set), set))
	s.generation = set.Generation
	// A later Change must not revert it.
	s.Check(unstructured.SetNestedField(s.set.Object, int64(pods), "spec", "replicas"))
}

// DeletePod deletes a Pod as "kubectl delete pod" does.
func (s *Scene) DeletePod(name string) {
	s.Step("delete %s", name)
	s.Check(s.session.kube.Delete(s.ctx, s.pod(name)))
}

// ForceDeletePod deletes a Pod as "kubectl delete pod --grace-period=0 --force" does.
func (s *Scene) ForceDeletePod(name string) {
	s.Step("delete %s by force", name)
	s.Check(s.session.kube.Delete(s.ctx, s.pod(name), client.GracePeriodSeconds(0)))
}

// Evict evicts a Pod as "kubectl drain" does.
func (s *Scene) Evict(name string) {
	s.Step("evict %s", name)
	s.Check(s.session.kube.SubResource("eviction").Create(s.ctx, s.pod(name), &policyv1.Eviction{}))
}

func (s *Scene) pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace(), Name: name}}
}

// Version is the image tag that a Pod's container main runs; empty if it runs none.
func Version(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == "main" && c.State.Running != nil {
			return tagOf(c.Image)
		}
	}
	return ""
}

// Restarts counts the restarts of a Pod's containers.
func Restarts(pod *corev1.Pod) int32 {
	var n int32
	for _, c := range pod.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}
