// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/images"
	"github.com/usher-dev/usher/test/stage"
)

// apply creates or changes an object and returns its generation.
func (s *Scene) apply(object *unstructured.Unstructured) int64 {
	generation, err := stage.Apply(s.ctx, s.Kube(), object)
	s.Check(err)
	return generation
}

// Change merges a YAML document into the workload. Containers and variables are matched
// by name; null removes a field.
func (s *Scene) Change(document string) {
	changed, err := stage.Merge(s.object, s.schema, document)
	s.Check(err)
	s.object = changed
	s.generation = s.apply(s.object)
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
	s.generation, err = stage.Scale(s.ctx, s.Kube(), s.object.DeepCopy(), pods)
	s.Check(err)
	// A later Change must not revert it.
	s.Check(unstructured.SetNestedField(s.object.Object, int64(pods), "spec", "replicas"))
}

// Kubectl runs kubectl in the story's namespace, and returns what it writes.
func (s *Scene) Kubectl(args ...string) string {
	s.Step("kubectl %s", strings.Join(args, " "))
	ctx, cancel := context.WithTimeoutCause(s.ctx, patience, fmt.Errorf("after %s", patience))
	defer cancel()
	cmd := s.session.tool(ctx, "kubectl", append([]string{"--namespace", s.Namespace()}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Check(fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out))
	}
	return string(out)
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
func (s *Scene) Evict(name string) { s.Check(s.TryEvict(name)) }

// TryEvict is Evict; it returns why it is refused.
func (s *Scene) TryEvict(name string) error {
	s.Step("evict %s", name)
	return s.Kube().SubResource("eviction").Create(s.ctx, s.pod(name), &policyv1.Eviction{})
}

// TimeDelete deletes a Pod with kubectl. It returns how long its drain took, and how much
// later the API server accepted the deletion.
func (s *Scene) TimeDelete(name string) (drain, later time.Duration) {
	began, watching := time.Now(), make(chan [2]time.Duration, 1)
	go func() {
		var drain time.Duration
		_ = wait.PollUntilContextTimeout(s.ctx, 10*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
			pod := &corev1.Pod{}
			err := s.session.objects.Get(ctx, client.ObjectKeyFromObject(s.pod(name)), pod)
			if drain == 0 && !slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer) {
				drain = time.Since(began)
			}
			return err != nil || pod.DeletionTimestamp != nil, nil
		})
		watching <- [2]time.Duration{drain, time.Since(began) - drain}
	}()
	s.Kubectl("delete", "pod", name, "--wait=false")
	found := <-watching
	return found[0], found[1]
}

// Budget protects the story's Pods with a PodDisruptionBudget, and waits until it counts.
func (s *Scene) Budget(spec string) {
	s.Step("a budget %s", spec)
	budget, err := build(policyv1.PodDisruptionBudget{}, fmt.Sprintf(
		"{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {namespace: %s, name: web}, spec: {selector: {matchLabels: {app: web}}, %s}}", s.Namespace(), spec))
	s.Check(err)
	s.apply(budget)
	s.Await("the budget to count", func(now State) string {
		found := &policyv1.PodDisruptionBudget{}
		s.Check(s.Kube().Get(s.ctx, client.ObjectKeyFromObject(budget), found))
		if meta.IsStatusConditionFalse(found.Status.Conditions, policyv1.DisruptionAllowedCondition) {
			// The controller manager learns of a kind that is younger than itself within 30 s,
			// and does not look again by itself at a budget that it failed to count before. A
			// stamp makes it do so, once a second: the same stamp again changes nothing.
			stamp := fmt.Sprintf(`{"metadata": {"annotations": {"stamp": %q}}}`, time.Now().Format(time.RFC3339))
			s.Check(s.Kube().Patch(s.ctx, found.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(stamp))))
		}
		if n := int(found.Status.CurrentHealthy); n != len(now.Pods) {
			return fmt.Sprintf("it has counted %d Pods", n)
		}
		return ""
	})
}

// Found adds a row to what is known of Usher's footprint, and tells it in the story's line.
func (s *Scene) Found(what, found, how string) {
	s.session.found(what, found, how)
	s.notes = append(s.notes, what+" "+found)
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
