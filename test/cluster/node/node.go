// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	goruntime "runtime"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	leaseDuration = 40 * time.Second
	// heartbeatPeriod is how often leases are renewed; a kubelet's value.
	heartbeatPeriod = 10 * time.Second
	// kubeletVersion is the Kubernetes version of the emulated kubelet.
	kubeletVersion = "v1.36.3"
)

// nodeState is what the agent knows of one of its nodes. The agent's lock guards all
// but index.
type nodeState struct {
	index   int
	failed  bool
	renewed time.Time // the last successful heartbeat
}

func (a *Agent) registerNodes(ctx context.Context) error {
	for i, name := range a.names {
		if err := a.createNode(ctx, name, i); err != nil {
			return fmt.Errorf("register node %s: %w", name, err)
		}
		if err := a.heartbeat(ctx, name); err != nil {
			return fmt.Errorf("register node %s: %w", name, err)
		}
	}
	return nil
}

func (a *Agent) createNode(ctx context.Context, name string, index int) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				corev1.LabelHostname:   name,
				corev1.LabelOSStable:   goruntime.GOOS,
				corev1.LabelArchStable: goruntime.GOARCH,
			},
		},
		Spec: corev1.NodeSpec{ProviderID: a.runtime.Traits().Name + "://" + name},
	}
	_, err := a.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the Node: %w", err)
	}
	return a.postNodeStatus(ctx, name, index)
}

// postNodeStatus reports the node as ready. Its conditions keep their transition times
// unless somebody else has declared the node dead.
func (a *Agent) postNodeStatus(ctx context.Context, name string, index int) error {
	node, err := a.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the Node: %w", err)
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("1000"),
		corev1.ResourceMemory:           resource.MustParse("4Ti"),
		corev1.ResourceEphemeralStorage: resource.MustParse("4Ti"),
		corev1.ResourcePods:             *resource.NewQuantity(int64(a.podsPerNode), resource.DecimalSI),
	}
	node.Status.Capacity, node.Status.Allocatable = capacity, capacity
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: a.runtime.HostIP(index)},
		{Type: corev1.NodeHostName, Address: name},
	}
	now := stamp(a.clock.Now())
	for _, condition := range []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"},
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID"},
	} {
		setNodeCondition(&node.Status, condition, now)
	}
	node.Status.NodeInfo = corev1.NodeSystemInfo{
		Architecture: goruntime.GOARCH, OperatingSystem: goruntime.GOOS, OSImage: "Usher development cluster",
		KernelVersion: "none", KubeletVersion: kubeletVersion,
		ContainerRuntimeVersion: a.runtime.Traits().Name + "://" + kubeletVersion,
		MachineID:               name, SystemUUID: name, BootID: name,
	}
	node.ResourceVersion = "" // overwrite whatever others changed meanwhile
	if _, err := a.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write the Node's status: %w", err)
	}
	return nil
}

func setNodeCondition(status *corev1.NodeStatus, condition corev1.NodeCondition, now metav1.Time) {
	condition.LastHeartbeatTime, condition.LastTransitionTime = now, now
	for i := range status.Conditions {
		old := &status.Conditions[i]
		if old.Type != condition.Type {
			continue
		}
		if old.Status == condition.Status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
		*old = condition
		return
	}
	status.Conditions = append(status.Conditions, condition)
}

// runHeartbeats renews the leases of all nodes at each tick until ctx ends.
func (a *Agent) runHeartbeats(ctx context.Context, ticker clock.Ticker) {
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		for _, name := range a.names {
			if err := a.heartbeat(ctx, name); err != nil && ctx.Err() == nil {
				a.log.Error(err, "Heartbeat failed", "node", name)
			}
		}
	}
}

// heartbeat renews a node's lease unless the node has failed.
func (a *Agent) heartbeat(ctx context.Context, name string) error {
	now := a.clock.Now()
	a.mu.Lock()
	node := a.nodes[name]
	failed, last := node.failed, node.renewed
	a.mu.Unlock()
	if failed {
		return nil
	}
	// After a longer silence (a suspended machine) the control plane has declared the
	// node dead. Only a new status brings it back.
	if !last.IsZero() && now.Sub(last) >= leaseDuration {
		if err := a.postNodeStatus(ctx, name, node.index); err != nil {
			return err
		}
	}
	if err := a.renewLease(ctx, name, now); err != nil {
		return err
	}
	a.mu.Lock()
	node.renewed = now
	a.mu.Unlock()
	return nil
}

func (a *Agent) renewLease(ctx context.Context, node string, now time.Time) error {
	leases := a.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	holder, duration, renewed := node, int32(leaseDuration/time.Second), metav1.NewMicroTime(now)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &duration, RenewTime: &renewed},
	}
	data, err := json.Marshal(lease)
	if err != nil {
		return fmt.Errorf("encode the lease: %w", err)
	}
	_, err = leases.Patch(ctx, node, types.MergePatchType, data, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	return nil
}

// FailNode silences a node: no heartbeat, no status write, no event, no reaction to
// anything. Its containers keep running, as on a node that is cut off.
func (a *Agent) FailNode(name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := a.nodes[name]
	if node == nil {
		return fmt.Errorf("node %q is not one of this agent's: use one of %v", name, a.names)
	}
	node.failed = true
	return nil
}

func (a *Agent) hasFailed(node int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.nodes[a.names[node]].failed
}

// RecoverNode undoes FailNode: the node reports itself ready and catches up with all
// pending requests.
func (a *Agent) RecoverNode(ctx context.Context, name string) error {
	a.mu.Lock()
	node := a.nodes[name]
	if node == nil {
		a.mu.Unlock()
		return fmt.Errorf("node %q is not one of this agent's: use one of %v", name, a.names)
	}
	node.failed = false
	a.mu.Unlock()
	if err := a.postNodeStatus(ctx, name, node.index); err != nil {
		return fmt.Errorf("recover node %s: %w", name, err)
	}
	if err := a.heartbeat(ctx, name); err != nil {
		return fmt.Errorf("recover node %s: %w", name, err)
	}
	for _, entry := range a.entriesOf(node.index) {
		a.queue.Add(entry.pod.uid)
	}
	return nil
}
