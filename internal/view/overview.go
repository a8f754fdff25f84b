// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	regplan "github.com/usher-dev/usher/internal/registration/plan"
)

// Shown returns the workloads that concern Usher, by namespace, kind and name: CloneSets, and workloads
// whose Pods a Registration selects or have Usher's readiness gate, for which a Registration may be
// missing. The objects may be of several namespaces.
func Shown(now time.Time, all []metav1.Object) (out []Workload) {
	byNamespace := map[string][]metav1.Object{}
	for _, object := range all {
		byNamespace[object.GetNamespace()] = append(byNamespace[object.GetNamespace()], object)
	}
	for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		objects := byNamespace[namespace]
		for _, object := range objects {
			if !IsWorkload(object) {
				continue
			}
			o := Gather(now, object, objects)
			w := Of(o)
			registered := func(p Pod) bool { return len(p.Entries) > 0 }
			if w.Kind == apps.KindCloneSet.Kind || slices.ContainsFunc(w.Members, registered) || slices.ContainsFunc(o.Pods, regplan.HasGate) {
				out = append(out, w)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Workload) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return out
}

// IsWorkload reports whether Pods are shown below an object. The Pods of a ReplicaSet may be shown
// below its controller.
func IsWorkload(object metav1.Object) bool {
	switch object.(type) {
	case *apps.CloneSet, *appsv1.Deployment, *appsv1.StatefulSet, *appsv1.DaemonSet:
		return true
	case *appsv1.ReplicaSet:
		return metav1.GetControllerOfNoCopy(object) == nil
	}
	return false
}

// Rank returns the workload's rank: that of its worst Pod, or a worse one if the workload itself has a
// problem or its rollout is not done.
func (w *Workload) Rank() Rank {
	if len(w.Problems) > 0 || w.Phase == PhaseStalled || w.Phase == PhaseDegraded || w.Phase == PhaseInvalid {
		return RankTrouble
	}
	rank := RankServes
	if w.Phase != PhaseDone {
		rank = RankUnavailable
	}
	for i := range w.Members {
		rank = min(rank, w.Members[i].Rank())
	}
	return rank
}

// Worst returns the Pod that most needs attention; nil if none waits for anything.
func (w *Workload) Worst() (worst *Pod) {
	for i := range w.Members {
		p := &w.Members[i]
		if len(p.Waits) > 0 && (worst == nil || p.Rank() < worst.Rank()) {
			worst = p
		}
	}
	return worst
}
