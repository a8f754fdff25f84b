// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// KillAPIServer kills the API server with SIGKILL. Until StartAPIServer a State is
// what was last heard, and everything else fails.
func (s *Scene) KillAPIServer() {
	s.Step("kill the API server")
	s.Check(s.Node().Plane().KillAPIServer())
}

// StartAPIServer starts it again.
func (s *Scene) StartAPIServer() {
	s.Step("the API server is back")
	s.Check(s.Node().Plane().StartAPIServer(s.ctx))
}

// StopKubelet ends the kubelet; its containers run on.
func (s *Scene) StopKubelet() {
	s.Step("stop the kubelet")
	s.Check(s.Node().StopKubelet(s.ctx))
}

// StartKubelet starts it again.
func (s *Scene) StartKubelet() {
	s.Step("the kubelet is back")
	s.Check(s.Node().StartKubelet(s.ctx))
}

// AwaitNode waits until the node is ready, or until it is not.
func (s *Scene) AwaitNode(ready bool) {
	s.Step("await the node, ready %t", ready)
	s.Await(fmt.Sprintf("the node to be ready: %t", ready), func(State) string {
		if err := s.Node().Ready(s.ctx); ready != (err == nil) {
			return fmt.Sprintf("it says: %v", err)
		}
		return ""
	})
}

// ForceDeletePod deletes a Pod as "kubectl delete pod --grace-period=0 --force" does.
func (s *Scene) ForceDeletePod(name string) {
	s.Step("delete %s by force", name)
	s.Check(s.stage.kube.Delete(s.ctx, s.pod(name), client.GracePeriodSeconds(0)))
}

const (
	// stranger holds the lease of Usher's leader and does nothing.
	stranger = "usher-e2e"
	// strangerSeconds is for how long it may: longer than a story.
	strangerSeconds int32 = 3600
)

// DeposeUsher gives the lease of Usher's leader to nobody who could use it, and
// returns when the leader has noticed: its replica begins anew, and nobody leads
// until ElectUsher.
func (s *Scene) DeposeUsher() {
	s.Step("Usher has no leader")
	lease := s.lease()
	deposed := *lease.Spec.HolderIdentity
	before := s.usherRestarts()
	seconds, now := strangerSeconds, metav1.NowMicro()
	s.holdLease(coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now}, stranger)
	s.Await(deposed+" to begin anew", func(State) string {
		if holder := s.lease().Spec.HolderIdentity; holder == nil || *holder != stranger {
			s.Fatalf("the lease did not keep its holder %s", stranger)
		}
		if now := s.usherRestarts(); now <= before {
			return "no replica of Usher has"
		}
		return ""
	})
}

// ElectUsher frees the lease and waits until there is a leader.
func (s *Scene) ElectUsher() {
	began := time.Now()
	seconds := int32(1)
	s.holdLease(coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds}, "")
	s.AwaitUsher(began)
}

func (s *Scene) lease() *coordinationv1.Lease {
	lease := &coordinationv1.Lease{}
	s.Check(s.Kube().Get(s.ctx, client.ObjectKey{Namespace: usherNamespace, Name: usherLease}, lease))
	return lease
}

// holdLease writes the lease whatever is written beside it: a leader renews it
// every other second.
func (s *Scene) holdLease(spec coordinationv1.LeaseSpec, holder string) {
	lease := s.lease()
	before := lease.DeepCopy()
	spec.HolderIdentity, spec.LeaseTransitions = &holder, lease.Spec.LeaseTransitions
	lease.Spec = spec
	s.Check(s.Kube().Patch(s.ctx, lease, client.MergeFrom(before)))
}

// usherRestarts counts the restarts of all of Usher's replicas.
func (s *Scene) usherRestarts() int32 {
	pods := &corev1.PodList{}
	s.Check(s.Kube().List(s.ctx, pods, client.InNamespace(usherNamespace)))
	var n int32
	for _, pod := range pods.Items {
		n += Restarts(&pod)
	}
	return n
}
