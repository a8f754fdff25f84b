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
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationv1 "k8s.io/client-go/applyconfigurations/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: a.traits.Name + "://" + name},
	}
	if err := a.client.Create(ctx, node); err != nil {
		return fmt.Errorf("create node %s: %w", name, err)
	}
	node.Status = a.nodeStatus(name, index)
	node.ResourceVersion = "" // overwrite whatever others changed meanwhile
	if err := a.client.Status().Update(ctx, node); err != nil {
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
	return corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: hostIP(a.traits, index)}, {Type: corev1.NodeHostName, Address: name},
		},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
		}},
		NodeInfo: corev1.NodeSystemInfo{
			Architecture: goruntime.GOARCH, OperatingSystem: goruntime.GOOS, OSImage: "Usher development cluster",
			KernelVersion: "none", KubeletVersion: kubeletVersion, ContainerRuntimeVersion: a.traits.Name + "://" + kubeletVersion,
			MachineID: name, SystemUUID: name, BootID: name,
		},
	}
}

// runHeartbeats renews the leases of all nodes until ctx ends. The status of a node need
// not be renewed: the control plane only looks at the lease.
func (a *Agent) runHeartbeats(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		for name := range a.nodes {
			if err := a.renewLease(ctx, name); err != nil && ctx.Err() == nil {
				a.log.Error(err, "Heartbeat failed", "node", name)
			}
		}
	}, heartbeatPeriod)
	return nil
}

func (a *Agent) renewLease(ctx context.Context, node string) error {
	lease := coordinationv1.Lease(node, corev1.NamespaceNodeLease).WithSpec(coordinationv1.LeaseSpec().
		WithHolderIdentity(node).WithLeaseDurationSeconds(int32(leaseDuration / time.Second)).WithRenewTime(metav1.NowMicro()))
	if err := a.client.Apply(ctx, lease, client.FieldOwner(userAgent), client.ForceOwnership); err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	return nil
}
