// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
)

// nodeBench is an agent with two nodes, with a clock and an API that only tests
// advance.
type nodeBench struct {
	*testing.T
	clock  *clocktesting.FakeClock
	client kubernetes.Interface
	agent  *Agent
}

func newNodeBench(t *testing.T) *nodeBench {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	runtime, err := NewSimulatedRuntime(SimulatedOptions{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	b := &nodeBench{T: t, clock: clock, client: fake.NewClientset()}
	b.agent, err = Start(t.Context(), Options{Client: b.client, Runtime: runtime, Clock: clock, PodsPerNode: 7})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.agent.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// renewed is when the node's lease was last renewed.
func (b *nodeBench) renewed(node string) time.Time {
	b.Helper()
	lease, err := b.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(b.Context(), node, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return lease.Spec.RenewTime.Time
}

// beat advances to a heartbeat and waits until it reaches node-2, the last one.
func (b *nodeBench) beat(after time.Duration) {
	b.Helper()
	b.clock.Step(after)
	eventually(b.T, "node-2 beats", func() bool { return b.renewed("node-2").Equal(b.clock.Now()) })
}

func (b *nodeBench) node(name string) *corev1.Node {
	b.Helper()
	node, err := b.client.CoreV1().Nodes().Get(b.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return node
}

// declareDead does what the control plane does to a silent node.
func (b *nodeBench) declareDead(name string) {
	b.Helper()
	node := b.node(name)
	node.Status.Conditions[0].Status = corev1.ConditionUnknown
	if _, err := b.client.CoreV1().Nodes().UpdateStatus(b.Context(), node, metav1.UpdateOptions{}); err != nil {
		b.Fatal(err)
	}
}

func TestNodesAreRegistered(t *testing.T) {
	b := newNodeBench(t)
	if got := strings.Join(b.agent.Nodes(), " "); got != "node-1 node-2" {
		t.Errorf("nodes %q", got)
	}
	status := b.node("node-1").Status
	if ready := status.Conditions[0]; ready.Type != corev1.NodeReady || ready.Status != corev1.ConditionTrue || status.Allocatable.Pods().Value() != 7 {
		t.Errorf("node status %+v, want a ready node for 7 Pods", status)
	}
}

func TestFailedNodeHasNoHeartbeat(t *testing.T) {
	b := newNodeBench(t)
	b.beat(heartbeatPeriod)
	last := b.clock.Now()
	if !b.renewed("node-1").Equal(last) {
		t.Error("node-1 does not beat")
	}
	if err := b.agent.FailNode("node-1"); err != nil {
		t.Fatal(err)
	}
	b.beat(heartbeatPeriod)
	if got := b.renewed("node-1"); !got.Equal(last) {
		t.Errorf("the failed node's lease was renewed at %v, after %v", got, last)
	}
	b.declareDead("node-1")
	if err := b.agent.RecoverNode(t.Context(), "node-1"); err != nil {
		t.Fatal(err)
	}
	if ready := b.node("node-1").Status.Conditions[0]; ready.Status != corev1.ConditionTrue || !b.renewed("node-1").Equal(b.clock.Now()) {
		t.Errorf("the node did not recover: %+v, lease of %v", ready, b.renewed("node-1"))
	}
	for _, err := range []error{b.agent.FailNode("x"), b.agent.RecoverNode(t.Context(), "x")} {
		if err == nil || !strings.Contains(err.Error(), "node-1 node-2") {
			t.Errorf("error %v, want one that names the nodes", err)
		}
	}
}

// TestNodeReturnsAfterASuspension suspends the machine for so long that the control
// plane gives up the node.
func TestNodeReturnsAfterASuspension(t *testing.T) {
	b := newNodeBench(t)
	b.beat(heartbeatPeriod)
	b.declareDead("node-2")
	b.beat(heartbeatPeriod)
	if ready := b.node("node-2").Status.Conditions[0]; ready.Status != corev1.ConditionUnknown {
		t.Errorf("a heartbeat in time writes the node's status: %+v", ready)
	}
	b.beat(time.Hour)
	if ready := b.node("node-2").Status.Conditions[0]; ready.Status != corev1.ConditionTrue {
		t.Errorf("the node did not come back: %+v", ready)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	runtime, err := NewSimulatedRuntime(SimulatedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for want, options := range map[string]Options{"Options.Runtime": {Client: fake.NewClientset()}, "Options.RESTConfig": {Runtime: runtime}} {
		if _, err := Start(t.Context(), options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
	for _, options := range []SimulatedOptions{
		{Aliases: map[string]string{"web": ""}}, {CrashImages: []string{"Web"}}, {MissingImages: []string{":"}},
	} {
		if _, err := NewSimulatedRuntime(options); err == nil || !strings.Contains(err.Error(), "SimulatedOptions.") {
			t.Errorf("error %v for %+v, want one that names the option", err, options)
		}
	}
}
