// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	goruntime "runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/applyconfigurations/coordination/v1"
)

const (
	leaseDuration = 40 * time.Second
	// heartbeatPeriod is how often leases are renewed; a kubelet's value.
	heartbeatPeriod = 10 * time.Second
	// kubeletVersion is the Kubernetes version of the emulated kubelet.
	kubeletVersion = "v1.36.3"
)

// hostIP is the address of the node with the given index.
func hostIP(traits Traits, index int) string {
	if traits.Real {
		return "127.0.0.1"
	}
	return fmt.Sprintf("10.254.%d.%d", index/250, index%250+1)
}

func (a *Agent) registerNode(ctx context.Context, name string, index int) error {
	labels := map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: goruntime.GOOS, corev1.LabelArchStable: goruntime.GOARCH}
	node, err := a.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: a.traits.Name + "://" + name},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create node %s: %w", name, err)
	}
	node.Status = a.nodeStatus(name, index)
	node.ResourceVersion = "" // overwrite whatever others changed meanwhile
	if _, err := a.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write the status of node %s: %w", name, err)
	}
	return a.renewLease(ctx, name)
}

// nodeStatus reports the node as ready.
func (a *Agent) nodeStatus(name string, index int) corev1.NodeStatus {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("1000"),
		corev1.ResourceMemory:           resource.MustParse("4Ti"),
		corev1.ResourceEphemeralStorage: resource.MustParse("4Ti"),
		corev1.ResourcePods:             *resource.NewQuantity(int64(a.podsPerNode), resource.DecimalSI),
	}
	now := metav1.Now()
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	return corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: hostIP(a.traits, index)},
			{Type: corev1.NodeHostName, Address: name},
		},
		Conditions: []corev1.NodeCondition{
			condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"),
			condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
			condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
			condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
		},
		NodeInfo: corev1.NodeSystemInfo{
			Architecture: goruntime.GOARCH, OperatingSystem: goruntime.GOOS, OSImage: "Usher development cluster",
			KernelVersion: "none", KubeletVersion: kubeletVersion, ContainerRuntimeVersion: a.traits.Name + "://" + kubeletVersion,
			MachineID: name, SystemUUID: name, BootID: name,
		},
	}
}

// runHeartbeats renews the leases of all nodes until ctx ends. The status of a node need
// not be renewed: the control plane only looks at the lease.
func (a *Agent) runHeartbeats(ctx context.Context) {
	ticker := time.NewTicker(heartbeatPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for name := range a.nodes {
			if err := a.renewLease(ctx, name); err != nil && ctx.Err() == nil {
				a.log.Error(err, "Heartbeat failed", "node", name)
			}
		}
	}
}

func (a *Agent) renewLease(ctx context.Context, node string) error {
	lease := coordinationv1.Lease(node, corev1.NamespaceNodeLease).WithSpec(coordinationv1.LeaseSpec().
		WithHolderIdentity(node).WithLeaseDurationSeconds(int32(leaseDuration / time.Second)).WithRenewTime(metav1.NowMicro()))
	_, err := a.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Apply(ctx, lease, metav1.ApplyOptions{FieldManager: userAgent, Force: true})
	if err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	return nil
}
