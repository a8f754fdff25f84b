// SPDX-License-Identifier: Apache-2.0

package view

import (
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// SummaryOf is the summary of a Deployment, StatefulSet, ReplicaSet or DaemonSet.
func SummaryOf(object metav1.Object) Summary {
	s := Summary{Namespace: object.GetNamespace(), Name: object.GetName(), Phase: PhaseUpdating}
	seen, paused := false, false
	count := func(kind string, observed int64, desired, pods, ready, available, updated int32) {
		s.Kind, s.Desired, s.ToUpdate = kind, int(desired), int(desired)
		s.Pods, s.Ready, s.Available, s.Updated = int(pods), int(ready), int(available), int(updated)
		seen = observed >= object.GetGeneration()
	}
	switch o := object.(type) {
	case *appsv1.Deployment:
		t := o.Status
		count("Deployment", t.ObservedGeneration, ptr.Deref(o.Spec.Replicas, 1), t.Replicas, t.ReadyReplicas, t.AvailableReplicas, t.UpdatedReplicas)
		paused = o.Spec.Paused
	case *appsv1.StatefulSet:
		t := o.Status
		count("StatefulSet", t.ObservedGeneration, ptr.Deref(o.Spec.Replicas, 1), t.Replicas, t.ReadyReplicas, t.AvailableReplicas, t.UpdatedReplicas)
		if u := o.Spec.UpdateStrategy.RollingUpdate; u != nil {
			s.ToUpdate = max(s.Desired-int(ptr.Deref(u.Partition, 0)), 0)
		}
	case *appsv1.ReplicaSet:
		t := o.Status
		count("ReplicaSet", t.ObservedGeneration, ptr.Deref(o.Spec.Replicas, 1), t.Replicas, t.ReadyReplicas, t.AvailableReplicas, t.Replicas)
	case *appsv1.DaemonSet:
		t := o.Status
		count("DaemonSet", t.ObservedGeneration, t.DesiredNumberScheduled, t.CurrentNumberScheduled, t.NumberReady, t.NumberAvailable, t.UpdatedNumberScheduled)
	}
	if seen && s.settled() {
		s.Phase = PhaseDone
	}
	switch {
	case object.GetDeletionTimestamp() != nil:
		s.Phase = PhaseDeleting
	case paused && s.Phase != PhaseDone:
		s.Phase = PhasePaused
	}
	return s
}

// settled reports whether the counts are as they should be.
func (s *Summary) settled() bool {
	return s.Available == s.Desired && s.Pods == s.Desired && s.Updated >= s.ToUpdate
}
