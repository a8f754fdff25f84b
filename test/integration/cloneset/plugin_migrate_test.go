// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// deployment reads the Deployment.
func (s *story) deployment() *appsv1.Deployment {
	s.Helper()
	out := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "former"}}
	s.Read(out)
	return out
}

// migrate is `migrate CloneSet --from Deployment --create`: a CloneSet from the
// Deployment's template, including the nulls and defaults that the Deployment has by
// now.
func (s *story) migrate(replicas int64) {
	s.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s.deployment())
	s.Must(err)
	from := fields["spec"].(map[string]any)
	spec := map[string]any{"replicas": replicas}
	for _, key := range []string{"selector", "template", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"} {
		if value, ok := from[key]; ok {
			spec[key] = value
		}
	}
	set := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": s.Namespace, "name": "web", "labels": map[string]any{"team": "shop"}}, "spec": spec,
	}}
	set.SetGroupVersionKind(apps.KindCloneSet)
	s.Make(set)
}

// moved waits until the set and the Deployment own these numbers of Pods, all
// available. Meanwhile there are never fewer ready Pods than the Deployment had.
func (s *story) moved(ours, others int32) {
	s.Helper()
	s.untilStatus(fmt.Sprintf("%d Pods of the set and %d of the Deployment", ours, others), func(status *apps.CloneSetStatus) bool {
		set, deployment := s.set(), s.deployment()
		mine, ready := int32(0), 0
		pods := s.pods()
		for _, pod := range pods {
			if metav1.IsControlledBy(&pod, set) {
				mine++
			}
			if conditionOf(&pod, corev1.PodReady).Status == corev1.ConditionTrue {
				ready++
			}
		}
		if ready < 4 {
			s.Fatalf("%d Pods are ready\n%s", ready, s.Picture())
		}
		return status.AvailableReplicas == ours && mine == ours &&
			deployment.Status.AvailableReplicas == others && len(pods) == int(ours+others)
	})
}

// `migrate CloneSet --from Deployment` moves the replicas to a CloneSet with the same
// selector labels: a few at a time, or all at once. Each of the two keeps its own Pods
// throughout.
func TestPluginMigrate(t *testing.T) {
	for name, steps := range map[string][]int32{
		"--create, then --replicas 4 --max-surge 2": {0, 2, 4},
		"--create --copy": {4},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t)
			s.create("deployment")
			s.until("the Deployment's Pods", func() bool { return s.deployment().Status.AvailableReplicas == 4 })
			s.migrate(int64(steps[0]))
			left := int32(4)
			for _, step := range steps {
				s.scaleTo(s.set(), step)
				s.moved(step, left)
				left = 4 - step
				s.scaleTo(s.deployment(), left)
				s.moved(step, left)
			}
			s.settled(4)
			before := s.identities()
			former := s.deployment()
			s.Must(s.Delete(t.Context(), former, client.PropagationPolicy(metav1.DeletePropagationForeground)))
			s.Gone(former)
			s.unchanged()
			s.settled(4)
			s.samePods(before)
			if s.restarts() != "0 0 0 0" || s.chronicle() != "1 web:v1" {
				t.Errorf("restarts %s, history %q", s.restarts(), s.chronicle())
			}
		})
	}
}
