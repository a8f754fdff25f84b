// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// stranger holds the lease of Usher's leader and does nothing.
	stranger = "usher-e2e"
	// strangerSeconds is how long it may hold the lease: longer than a story.
	strangerSeconds int32 = 3600
)

// DeposeUsher gives the lease of Usher's leader to an inactive holder, and returns when
// the leader has noticed: its replica restarts, and nobody leads until ElectUsher.
func (s *Scene) DeposeUsher() {
	s.Step("Usher has no leader")
	before := s.usherRestarts()
	seconds, holder, now := strangerSeconds, stranger, metav1.NowMicro()
	s.Check(s.session.writeLease(s.ctx, coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now,
	}))
	s.Await("the leader to begin anew", func(State) string {
		if now := s.usherRestarts(); now <= before {
			return "no replica of Usher has"
		}
		return ""
	})
}

// ElectUsher frees the lease and waits until Usher has a leader.
func (s *Scene) ElectUsher() {
	began := time.Now()
	s.Check(s.session.freeLease(s.ctx, stranger))
	s.AwaitUsher(began)
}

// freeLease removes a holder from the lease, if it is the holder.
func (s *session) freeLease(ctx context.Context, holder string) error {
	lease := &coordinationv1.Lease{}
	if err := s.kube.Get(ctx, leaseKey(), lease); err != nil {
		return err
	}
	if have := lease.Spec.HolderIdentity; have == nil || *have != holder {
		return nil
	}
	nobody, seconds := "", int32(1)
	return s.writeLease(ctx, coordinationv1.LeaseSpec{HolderIdentity: &nobody, LeaseDurationSeconds: &seconds})
}

func leaseKey() client.ObjectKey {
	return client.ObjectKey{Namespace: usherNamespace, Name: usherLease}
}

// writeLease writes the lease regardless of concurrent writes: a leader renews it every
// two seconds.
func (s *session) writeLease(ctx context.Context, spec coordinationv1.LeaseSpec) error {
	lease := &coordinationv1.Lease{}
	if err := s.kube.Get(ctx, leaseKey(), lease); err != nil {
		return err
	}
	before := lease.DeepCopy()
	spec.LeaseTransitions = lease.Spec.LeaseTransitions
	lease.Spec = spec
	return s.kube.Patch(ctx, lease, client.MergeFrom(before))
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
