// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationv1 "k8s.io/client-go/applyconfigurations/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const (
	leaseDuration = 40 * time.Second
	// heartbeatPeriod is how often leases are renewed; a kubelet's value.
	heartbeatPeriod = 10 * time.Second
)

// hostIP returns the address of the node with the given index.
func hostIP(traits Traits, index int) string {
	if traits.Real {
		return "127.0.0.1"
	}
	return fmt.Sprintf("10.254.%d.%d", index/250, index%250+1)
}

// nodeText is a node, with values as $NAME.
//
//go:embed node.yaml
var nodeText string

// registerNode creates a node, which is ready, and its lease, or takes over those that there are.
func (a *Agent) registerNode(ctx context.Context, name string, index int) error {
	values := map[string]string{
		"NODE": name, "ADDRESS": hostIP(a.traits, index), "PODS": strconv.Itoa(a.podsPerNode), "RUNTIME": a.traits.Name,
		"OS": goruntime.GOOS, "ARCH": goruntime.GOARCH,
	}
	node := &corev1.Node{}
	if err := yaml.UnmarshalStrict([]byte(os.Expand(nodeText, func(key string) string { return values[key] })), node); err != nil {
		return err
	}
	node.Status.Conditions = []corev1.NodeCondition{nodeReady(a.clock.Now())}
	// A cluster that was restored from a snapshot has the node, and this agent goes on with its Pods.
	if err := a.client.Create(ctx, node); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create node %s: %w", name, err)
	}
	return a.renewLease(ctx, name)
}

// runHeartbeats renews the leases of all nodes until ctx ends. The control plane checks only the lease,
// but when that has run out, the node itself has to report that it is ready again.
func (a *Agent) runHeartbeats(ctx context.Context) error {
	renewed := map[string]time.Time{}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		for name := range a.nodes {
			if err := a.heartbeat(ctx, name, renewed); err != nil && ctx.Err() == nil {
				a.log.Error(err, "Heartbeat failed", "node", name)
			}
		}
	}, heartbeatPeriod)
	return nil
}

// heartbeat renews a node's lease. renewed is when that last succeeded.
func (a *Agent) heartbeat(ctx context.Context, node string, renewed map[string]time.Time) error {
	if err := a.renewLease(ctx, node); err != nil {
		return err
	}
	now := a.clock.Now()
	if last, ok := renewed[node]; ok && now.Sub(last) >= leaseDuration {
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		ready, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{nodeReady(now)}}})
		if err == nil {
			err = a.client.Status().Patch(ctx, object, client.RawPatch(types.StrategicMergePatchType, ready))
		}
		if err != nil {
			return fmt.Errorf("write that node %s is ready: %w", node, err)
		}
	}
	renewed[node] = now
	return nil
}

func nodeReady(now time.Time) corev1.NodeCondition {
	at := metav1.NewTime(now)
	return corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: at, LastTransitionTime: at,
	}
}

func (a *Agent) renewLease(ctx context.Context, node string) error {
	lease := coordinationv1.Lease(node, corev1.NamespaceNodeLease).WithSpec(coordinationv1.LeaseSpec().
		WithHolderIdentity(node).WithLeaseDurationSeconds(int32(leaseDuration / time.Second)).WithRenewTime(metav1.NowMicro()))
	if err := a.client.Apply(ctx, lease, client.FieldOwner(userAgent), client.ForceOwnership); err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	return nil
}
