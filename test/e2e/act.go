// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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
	generation, err := stage.Apply(s.ctx, s.session.Kube, object)
	s.check(err)
	return generation
}

// make creates or changes the object that documents describe.
func (s *Scene) make(kind any, documents ...string) *unstructured.Unstructured {
	object, err := build(kind, documents...)
	s.check(err)
	s.apply(object)
	return object
}

// change merges a YAML document into the workload. Containers and variables are matched
// by name; null removes a field.
func (s *Scene) change(document string) {
	changed, err := stage.Merge(s.object, s.schema, document)
	s.check(err)
	s.object = changed
	s.generation = s.apply(s.object)
}

// image sets the image of the container main: to a version of the web service (v1, v2, v3,
// or one that does not exist), or to any image.
func (s *Scene) image(name string) {
	if !strings.Contains(name, ":") {
		name = images.Web + ":" + name
	}
	s.change(fmt.Sprintf("spec: {template: {spec: {containers: [{name: main, image: %q}]}}}", name))
}

// scale writes the scale subresource, as "kubectl scale" and autoscalers do.
func (s *Scene) scale(pods int) {
	var err error
	s.generation, err = stage.Scale(s.ctx, s.session.Kube, s.object.DeepCopy(), pods)
	s.check(err)
	// A later change must not revert it.
	s.check(unstructured.SetNestedField(s.object.Object, int64(pods), "spec", "replicas"))
}

// kubectl runs kubectl in the story's namespace.
func (s *Scene) kubectl(args ...string) {
	ctx, cancel := context.WithTimeoutCause(s.ctx, patience, fmt.Errorf("after %s", patience))
	defer cancel()
	out, err := s.session.tool(ctx, "kubectl", append([]string{"--namespace", s.story.Name}, args...)...).CombinedOutput()
	if err != nil {
		s.check(fmt.Errorf("%w\n%s", err, out))
	}
}

// evict evicts a Pod as "kubectl drain" does; it returns the error if that is refused.
func (s *Scene) evict(name string) error {
	return s.session.Kube.SubResource("eviction").Create(s.ctx, s.pod(name), &policyv1.Eviction{})
}

// evictWhenAllowed evicts a Pod as soon as its budget has counted the Pods.
func (s *Scene) evictWhenAllowed(name string) {
	s.await("the budget to allow the eviction", func(State) string {
		err := s.evict(name)
		if apierrors.IsTooManyRequests(err) && strings.Contains(err.Error(), "disruption budget") {
			return err.Error()
		}
		s.check(err)
		return ""
	})
}

// timeDelete deletes a Pod with kubectl. It returns how long its drain took, and how much
// later the API server accepted the deletion.
func (s *Scene) timeDelete(name string) (drain, later time.Duration) {
	began := time.Now()
	var watching sync.WaitGroup
	watching.Go(func() {
		_ = wait.PollUntilContextTimeout(s.ctx, 10*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
			pod := &corev1.Pod{}
			err := s.session.objects.Get(ctx, client.ObjectKeyFromObject(s.pod(name)), pod)
			if drain == 0 && !slices.Contains(pod.Finalizers, usherv1alpha1.Finalizer) {
				drain = time.Since(began)
			}
			return err != nil || pod.DeletionTimestamp != nil, nil
		})
		later = time.Since(began) - drain
	})
	s.kubectl("delete", "pod", name, "--wait=false")
	watching.Wait()
	return drain, later
}

// budget protects the story's Pods with a PodDisruptionBudget, and waits until it counts.
func (s *Scene) budget(spec string) {
	budget := s.make(policyv1.PodDisruptionBudget{}, fmt.Sprintf(
		"{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {namespace: %s, name: web}, spec: {selector: {matchLabels: {app: web}}, %s}}", s.story.Name, spec))
	s.await("the budget to count", func(now State) string {
		found := &policyv1.PodDisruptionBudget{}
		s.check(s.session.Kube.Get(s.ctx, client.ObjectKeyFromObject(budget), found))
		if meta.IsStatusConditionFalse(found.Status.Conditions, policyv1.DisruptionAllowedCondition) {
			// The controller manager discovers a kind that is younger than itself within 30 s, and does
			// not retry a budget that it failed to count before. A stamp makes it retry, once a second:
			// writing the same stamp again changes nothing.
			stamp := fmt.Sprintf(`{"metadata": {"annotations": {"stamp": %q}}}`, time.Now().Format(time.RFC3339))
			s.check(s.session.Kube.Patch(s.ctx, found.DeepCopy(), mergePatch(stamp)))
		}
		n := int(found.Status.CurrentHealthy)
		return stage.Unless(n == len(now.Pods), "it has counted %d Pods", n)
	})
}

// found adds a row to the table of Usher's footprint, and a note to the story's line.
func (s *Scene) found(what, found, how string) {
	s.session.found(what, found, how)
	s.notes = append(s.notes, what+" "+found)
}

func mergePatch(text string) client.Patch {
	return client.RawPatch(types.MergePatchType, []byte(text))
}

func (s *Scene) pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.story.Name, Name: name}}
}

// localVolumes creates volumes from directories on the node, of a class with the story's name. That
// class has no provisioner, so there are no other volumes.
func (s *Scene) localVolumes(n int) {
	for i := range n {
		name := fmt.Sprintf("%s-%d", s.story.Name, i)
		s.make(corev1.PersistentVolume{}, fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: %s}, spec: {
			storageClassName: %s, capacity: {storage: 1Mi}, accessModes: [ReadWriteOnce], hostPath: {type: DirectoryOrCreate, path: %s}}}`,
			name, s.story.Name, s.session.Path("volumes", name)))
	}
}
