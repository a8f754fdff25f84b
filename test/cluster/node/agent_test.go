// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	a := newAgent(fake.NewClientset(object), Options{Runtime: runtime})
	t.Cleanup(a.queue.ShutDown)
	a.base = t.Context()
	a.observe(object)
	return a
}

// TestCacheThatLags makes the informer show the Pod as it was before the agent's last
// write: the agent must not act on it again.
func TestCacheThatLags(t *testing.T) {
	object := buildPod()
	object.ResourceVersion = "9"
	a := newIdleAgent(t, object)
	p := a.pods[object.UID]
	p.version = 10
	for _, seen := range []struct {
		version string
		want    corev1.PodPhase
	}{{"9", ""}, {"10", corev1.PodRunning}} {
		object = object.DeepCopy()
		object.ResourceVersion = seen.version
		a.observe(object)
		if _, err := a.sync(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		current, err := a.client.CoreV1().Pods(object.Namespace).Get(t.Context(), object.Name, metav1.GetOptions{})
		if err != nil || current.Status.Phase != seen.want {
			t.Errorf("version %s: phase %q, %v; want %q", seen.version, current.Status.Phase, err, seen.want)
		}
	}
}

func TestPodsOfOthersAreLeftAlone(t *testing.T) {
	object := buildPod()
	object.Spec.NodeName = "another"
	if a := newIdleAgent(t, object); len(a.pods) != 0 {
		t.Errorf("the agent has a record of a Pod on another's node")
	}
}

// TestGoneObjects ends a Pod's record for each way in which an informer reports that
// its object is gone.
func TestGoneObjects(t *testing.T) {
	object := buildPod()
	for _, reported := range []any{object, cache.DeletedFinalStateUnknown{Key: "k", Obj: object}} {
		a := newIdleAgent(t, object)
		p := a.pods[object.UID]
		for range 2 {
			if _, err := a.sync(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			a.forget(reported)
		}
		if len(a.pods) > 0 {
			t.Errorf("%T: the agent still has a record of the Pod", reported)
		}
	}
}
