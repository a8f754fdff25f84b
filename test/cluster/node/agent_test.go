// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// newIdleAgent creates an agent that does only what a test calls, with one Pod on the
// API server.
func newIdleAgent(t *testing.T, object *corev1.Pod) (a *Agent, reconcileIt func()) {
	t.Helper()
	runtime, err := NewSimulatedRuntime(SimulatedOptions{})
	registrytest.NoError(t, err)
	a = newAgent(fake.NewClientBuilder().WithObjects(object).WithStatusSubresource(object).Build(), Options{Runtime: runtime})
	a.base, a.enqueue = t.Context(), func(types.NamespacedName) {}
	return a, func() {
		t.Helper()
		if _, err := a.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCacheThatLags shows the agent the Pod as it was before the agent's last write: it
// must not act on it again.
func TestCacheThatLags(t *testing.T) {
	object := buildPod()
	object.ResourceVersion = "9"
	a, reconcileIt := newIdleAgent(t, object)
	key := client.ObjectKeyFromObject(object)
	for _, last := range []struct {
		version string
		want    corev1.PodPhase
	}{{"10", ""}, {"9", corev1.PodRunning}} {
		a.record(key, &pod{kubelet: &a.kubelet, uid: object.UID, version: last.version})
		reconcileIt()
		if err := a.client.Get(t.Context(), key, object); err != nil || object.Status.Phase != last.want {
			t.Errorf("after our version %s: phase %q, %v; want %q", last.version, object.Status.Phase, err, last.want)
		}
	}
}

// TestRecords: the agent has records of the Pods on its nodes that exist.
func TestRecords(t *testing.T) {
	other := buildPod()
	other.Spec.NodeName = "another"
	a, reconcileIt := newIdleAgent(t, other)
	if reconcileIt(); len(a.pods) != 0 {
		t.Error("the agent has a record of a Pod on another's node")
	}
	object := buildPod()
	a, reconcileIt = newIdleAgent(t, object)
	if reconcileIt(); len(a.pods) != 1 {
		t.Error("the agent has no record of its Pod")
	}
	registrytest.NoError(t, a.client.Delete(t.Context(), object))
	if reconcileIt(); len(a.pods) != 0 {
		t.Error("the agent still has a record of a Pod that is gone")
	}
}
