// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// newIdleAgent creates an agent that does only what a test calls, with one Pod on the
// API server.
func newIdleAgent(t *testing.T, object *corev1.Pod) *Agent {
	t.Helper()
	runtime, err := NewSimulatedRuntime(SimulatedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAgent(Options{Client: fake.NewClientset(object), Runtime: runtime})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.queue.ShutDown)
	a.base = t.Context()
	a.observe(object)
	return a
}

func (a *Agent) phase(t *testing.T, object *corev1.Pod) corev1.PodPhase {
	t.Helper()
	current, err := a.client.CoreV1().Pods(object.Namespace).Get(t.Context(), object.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return current.Status.Phase
}

// TestCacheThatLags makes the informer show the Pod as it was before the agent's last
// write: the agent must not act on it again.
func TestCacheThatLags(t *testing.T) {
	object := buildPod(func(object *corev1.Pod) { object.ResourceVersion = "9" })
	a := newIdleAgent(t, object)
	e := a.entries[object.UID]
	e.pod.version = 10
	if _, err := a.sync(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if got := a.phase(t, object); got != "" || e.pod.containers != nil {
		t.Errorf("the agent acted on an old object: phase %q", got)
	}
	fresh := object.DeepCopy()
	fresh.ResourceVersion = "10"
	a.observe(fresh)
	if _, err := a.sync(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if got := a.phase(t, object); got != corev1.PodRunning {
		t.Errorf("phase %q, want %s", got, corev1.PodRunning)
	}
}

func TestPodsOfOthersAreLeftAlone(t *testing.T) {
	object := buildPod(func(object *corev1.Pod) { object.Spec.NodeName = "another" })
	if a := newIdleAgent(t, object); len(a.entries) != 0 {
		t.Errorf("the agent has a record of a Pod on another's node")
	}
}

// TestGoneObjects ends a Pod's record for each way in which an informer reports that
// its object is gone.
func TestGoneObjects(t *testing.T) {
	for name, news := range map[string]func(*corev1.Pod) any{
		"deletion":        func(object *corev1.Pod) any { return object },
		"missed deletion": func(object *corev1.Pod) any { return cache.DeletedFinalStateUnknown{Key: "k", Obj: object} },
	} {
		t.Run(name, func(t *testing.T) {
			object := buildPod()
			a := newIdleAgent(t, object)
			e := a.entries[object.UID]
			for range 2 {
				if _, err := a.sync(t.Context(), e); err != nil {
					t.Fatal(err)
				}
				a.forget(news(object))
			}
			if _, known := a.entries[types.UID("uid-1")]; known {
				t.Error("the agent still has a record of the Pod")
			}
		})
	}
}
