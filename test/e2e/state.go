// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
)

// State is what a story sees of its namespace.
type State struct {
	// Set and Registration are nil if they do not exist.
	Set          *appsv1alpha1.CloneSet
	Registration *usherv1alpha1.Registration
	// Workload is the story's workload if that is no CloneSet; nil if it does not exist.
	Workload *unstructured.Unstructured
	// Pods are the workload's Pods in the namespace, by name, including those being deleted.
	Pods []corev1.Pod
	// Pulling is how many others there are, which pull an image.
	Pulling int
}

// state returns the present state of a namespace.
func (s *session) state(ctx context.Context, namespace string) (now State, err error) {
	key := client.ObjectKey{Namespace: namespace, Name: setName}
	pods := &corev1.PodList{}
	if now.Set, err = present(ctx, s, key, &appsv1alpha1.CloneSet{}); err != nil {
		return now, err
	}
	if now.Registration, err = present(ctx, s, key, &usherv1alpha1.Registration{}); err != nil {
		return now, err
	}
	if err := s.objects.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		return now, err
	}
	now.Pods = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
		return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Image != nil })
	})
	now.Pulling = len(pods.Items) - len(now.Pods)
	slices.SortFunc(now.Pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return now, nil
}

// present reads an object; nil if it does not exist.
func present[T client.Object](ctx context.Context, s *session, key client.ObjectKey, object T) (found T, err error) {
	if err := s.objects.Get(ctx, key, object); err != nil {
		return found, client.IgnoreNotFound(err)
	}
	return object, nil
}

// Pod finds a Pod by its name; nil if it is gone.
func (s State) Pod(name string) *corev1.Pod {
	for i := range s.Pods {
		if s.Pods[i].Name == name {
			return &s.Pods[i]
		}
	}
	return nil
}

// Condition returns one of the set's conditions; an empty one if absent.
func (s State) Condition(kind appsv1alpha1.CloneSetConditionType) appsv1alpha1.CloneSetCondition {
	if s.Set != nil {
		for _, c := range s.Set.Status.Conditions {
			if c.Type == kind {
				return c
			}
		}
	}
	return appsv1alpha1.CloneSetCondition{}
}

// Unsettled returns what is missing until nothing is in progress: the controllers have
// seen the set's generation, and every Pod has the newest revision (except those of the
// partition), serves and is registered. It is empty if nothing is missing.
func (s State) Unsettled(generation int64) string {
	switch {
	case s.Workload != nil:
		return s.unsettledWorkload(generation)
	case s.Set == nil:
		return "the set is not there"
	case s.Set.Generation < generation || s.Set.Status.ObservedGeneration < s.Set.Generation:
		return "Usher has not seen the set's last change"
	}
	replicas, status := *s.Set.Spec.Replicas, s.Set.Status
	if wrong := s.unsettledPods(replicas); wrong != "" {
		return wrong
	}
	if status.Replicas != replicas || status.AvailableReplicas != replicas || status.UpdatedAvailableReplicas < status.ExpectedUpdatedReplicas {
		return fmt.Sprintf("the status counts %d Pods, %d available, %d updated and available, want %d, %d, %d",
			status.Replicas, status.AvailableReplicas, status.UpdatedAvailableReplicas, replicas, replicas, status.ExpectedUpdatedReplicas)
	}
	return s.unregistered(replicas)
}

// unsettledWorkload is Unsettled for a Deployment, a StatefulSet or a DaemonSet.
func (s State) unsettledWorkload(generation int64) string {
	count := func(fields ...string) int64 {
		n, _, _ := unstructured.NestedInt64(s.Workload.Object, fields...) // What is absent is 0.
		return n
	}
	if seen := count("status", "observedGeneration"); s.Workload.GetGeneration() < generation || seen < s.Workload.GetGeneration() {
		return "its controller has not seen its last change"
	}
	want, fields := count("spec", "replicas"), []string{"replicas", "updatedReplicas", "availableReplicas"}
	if s.Workload.GetKind() == "DaemonSet" {
		want = count("status", "desiredNumberScheduled")
		fields = []string{"currentNumberScheduled", "updatedNumberScheduled", "numberAvailable"}
	}
	for _, field := range fields {
		if n := count("status", field); n != want || want == 0 {
			return fmt.Sprintf("its status has %d %s, want %d", n, field, want)
		}
	}
	if wrong := s.unsettledPods(int32(want)); wrong != "" {
		return wrong
	}
	return s.unregistered(int32(want))
}

func (s State) unsettledPods(want int32) string {
	if len(s.Pods) != int(want) {
		return fmt.Sprintf("%d Pods, want %d", len(s.Pods), want)
	}
	for _, pod := range s.Pods {
		if wrong := unsettledPod(&pod, s.Set != nil); wrong != "" {
			return pod.Name + " is " + wrong
		}
	}
	return ""
}

func unsettledPod(pod *corev1.Pod, inSet bool) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "being deleted"
	case inSet && lifecycle(pod) != appsv1alpha1.StateNormal:
		return string(lifecycle(pod))
	case !stage.Ready(pod):
		return "not ready"
	}
	return ""
}

func (s State) unregistered(replicas int32) string {
	if s.Registration == nil {
		return "the Registration is not there"
	}
	now := s.Registration.Status
	return stage.Unless(now.Registered == replicas && now.Draining == 0, "%d Pods are registered and %d drain, want %d and none", now.Registered, now.Draining, replicas)
}

// String is the state when a story failed.
func (s State) String() string {
	shown := map[string]any{}
	if s.Set != nil {
		shown["CloneSet"] = s.Set.Status
	}
	if s.Workload != nil {
		shown[s.Workload.GetKind()] = s.Workload.Object["status"]
	}
	if s.Registration != nil {
		shown["Registration"] = s.Registration.Status
	}
	for _, pod := range s.Pods {
		shown["Pod "+pod.Name] = map[string]any{
			"node": pod.Spec.NodeName, "annotations": pod.Annotations, "phase": pod.Status.Phase, "ready": stage.Ready(&pod), "deleted": pod.DeletionTimestamp, "finalizers": pod.Finalizers,
			"labels": pod.Labels, "containers": pod.Status.ContainerStatuses,
		}
	}
	text, err := yaml.Marshal(shown)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
