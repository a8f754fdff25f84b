// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/view"
	"github.com/usher-dev/usher/test/stage"
)

// State is the state of a story's namespace.
type State struct {
	// Set and Registration are nil if they do not exist.
	Set          *appsv1alpha1.CloneSet
	Registration *usherv1alpha1.Registration
	// Workload is the story's workload if that is no CloneSet; nil if it does not exist.
	Workload client.Object
	// Pods are the workload's Pods in the namespace, by name, including those being deleted.
	Pods []corev1.Pod
	// Pulling counts the pull Pods.
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
	return list.Find(s.Pods, func(pod *corev1.Pod) bool { return pod.Name == name })
}

// Unsettled says what is still in progress; empty if nothing is. Then the controllers have seen the
// set's generation, and every Pod has the newest revision (except those of the partition), serves and
// is registered.
func (s State) Unsettled(generation int64) string {
	wrong, want := s.unsettledSet(generation)
	if s.Workload != nil {
		wrong, want = s.unsettledWorkload(generation)
	}
	switch {
	case wrong != "":
		return wrong
	case len(s.Pods) != want:
		return fmt.Sprintf("%d Pods, want %d", len(s.Pods), want)
	case s.Registration == nil:
		return "the Registration is not there"
	}
	for _, pod := range s.Pods {
		if wrong := unsettledPod(&pod, s.Set != nil); wrong != "" {
			return pod.Name + " is " + wrong
		}
	}
	now := s.Registration.Status
	return stage.Unless(int(now.Registered) == want && now.Draining == 0, "%d Pods are registered and %d drain, want %d and none", now.Registered, now.Draining, want)
}

// unsettledSet is Unsettled for the set itself; want is how many Pods it should have.
func (s State) unsettledSet(generation int64) (wrong string, want int) {
	switch {
	case s.Set == nil:
		return "the set is not there", 0
	case s.Set.Generation < generation || s.Set.Status.ObservedGeneration < s.Set.Generation:
		return "Usher has not seen the set's last change", 0
	}
	replicas, now := *s.Set.Spec.Replicas, s.Set.Status
	done := now.Replicas == replicas && now.AvailableReplicas == replicas && now.UpdatedAvailableReplicas >= now.ExpectedUpdatedReplicas
	return stage.Unless(done, "the status counts %d Pods, %d available, %d updated and available, want %d, %d, %d", now.Replicas,
		now.AvailableReplicas, now.UpdatedAvailableReplicas, replicas, replicas, now.ExpectedUpdatedReplicas), int(replicas)
}

// unsettledWorkload is unsettledSet for a Deployment, a StatefulSet or a DaemonSet.
func (s State) unsettledWorkload(generation int64) (wrong string, want int) {
	now := view.SummaryOf(s.Workload)
	done := s.Workload.GetGeneration() >= generation && now.Phase == view.PhaseDone && now.Desired > 0
	return stage.Unless(done, "the %s is %+v", now.Kind, now), now.Desired
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

// String describes the state, for a story that failed. Of its Pods' specs, it has only the nodes.
func (s State) String() string {
	s.Pods = list.Map(s.Pods, func(pod corev1.Pod) corev1.Pod {
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
		return pod
	})
	text, err := yaml.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
