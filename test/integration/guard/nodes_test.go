// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
)

const firstNode, secondNode = "node-1", "node-2"

// cordon cordons a node until the end of the test, or uncordons it.
func (s *story) cordon(name string, yes bool) {
	s.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	patch := func(yes bool) client.Patch {
		return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes))
	}
	s.Must(s.Patch(s.Context(), node, patch(yes)))
	s.Cleanup(func() {
		if err := s.Patch(context.Background(), node, patch(false)); err != nil {
			s.Error(err)
		}
	})
}

// on are the names of the Pods on a node.
func (s *story) on(node string) []string {
	s.Helper()
	var names []string
	for _, pod := range s.Pods() {
		if pod.Spec.NodeName == node {
			names = append(names, pod.Name)
		}
	}
	return names
}

// onFirstNode makes a CloneSet all of whose Pods are on the first node.
func (s *story) onFirstNode(replicas int, strategy string) []corev1.Pod {
	s.Helper()
	s.cordon(secondNode, true)
	s.cloneSet(replicas, "spec: {updateStrategy: "+strategy+"}")
	s.cordon(secondNode, false)
	if n := len(s.on(firstNode)); n != replicas {
		s.Fatalf("%d of %d Pods are on the node", n, replicas)
	}
	return s.Pods()
}

// moved waits until all of the Pods are replaced on the other node.
func (s *story) moved(pods []corev1.Pod) {
	s.Helper()
	s.Until("no Pod on the node", func() string { return strings.Join(s.on(firstNode), " ") })
	s.inService(len(pods))
	s.left(len(pods))
}

// rounds counts how often Pods are created and then others leave, until the returned
// function is called.
func (s *story) rounds() (stop func() int) {
	s.Helper()
	events, err := s.Watch(s.Context(), &corev1.PodList{}, client.InNamespace(s.Namespace))
	s.Must(err)
	counted := make(chan int)
	go func() {
		rounds, leaving := 0, map[string]bool{}
		created := true
		for event := range events.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			switch {
			case !ok:
			case event.Type == watch.Added:
				created = true
			case appsv1alpha1.LifecycleState(pod.Labels[appsv1alpha1.LabelLifecycleState]) == appsv1alpha1.StatePreparingDelete && !leaving[pod.Name]:
				leaving[pod.Name] = true
				if created {
					rounds++
				}
				created = false
			}
		}
		counted <- rounds
	}()
	return func() int { events.Stop(); return <-counted }
}

// TestCordonedNode: a node with 20 Pods is cordoned, and nobody evicts them. All their
// replacements come first, and then the Pods leave: the node takes one round, like a single
// Pod, and callers never have fewer Pods than replicas.
func TestCordonedNode(t *testing.T) {
	s := begin(t)
	pods := s.onFirstNode(20, "{maxUnavailable: 0, maxSurge: 100%}")
	rounds, fewest := s.rounds(), callers.count(s.Namespace)
	s.cordon(firstNode, true)
	s.moved(pods)
	if n := fewest(); n < len(pods) {
		t.Errorf("only %d of %d Pods were in service", n, len(pods))
	}
	if n := rounds(); n != 1 {
		t.Errorf("%d rounds, want 1", n)
	}
	s.Event(nil, "PodLeavesNode", "node node-1 is cordoned")
}

// TestDrainedNode: what kubectl drain does, cordoning a node and evicting its Pods, loses
// none: each is replaced, as the set's budgets allow, and leaves its registry first.
func TestDrainedNode(t *testing.T) {
	s := begin(t)
	pods := s.onFirstNode(6, "{maxUnavailable: 2}")
	fewest := callers.count(s.Namespace)
	s.cordon(firstNode, true)
	s.evictAll(pods)
	s.moved(pods)
	if n := fewest(); n < 4 {
		t.Errorf("only %d of 6 Pods were in service, maxUnavailable is 2", n)
	}
}
