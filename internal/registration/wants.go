// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// This file says what owners want of their Pods, kind by kind.

// ownerSource is where owners are read: live, or from the caches, whose objects are small.
type ownerSource struct {
	client.Reader
	live bool
}

// revisions has each ControllerRevision of a namespace looked at. Live ones may be large: they come in
// pages, and none is kept.
func (s ownerSource) revisions(ctx context.Context, namespace string, look func(*appsv1.ControllerRevision)) error {
	const what = "ControllerRevisions"
	empty, here := &appsv1.ControllerRevisionList{}, client.InNamespace(namespace)
	if s.live {
		none := func(revision *appsv1.ControllerRevision) (*appsv1.ControllerRevision, bool) {
			look(revision)
			return nil, false
		}
		_, err := kube.ListKept(ctx, s.Reader, what, empty, none, here)
		return err
	}
	all, err := kube.List[*appsv1.ControllerRevision](ctx, s.Reader, what, empty, here)
	for _, revision := range all {
		look(revision)
	}
	return err
}

// An ownerKind reads what an owner of that kind wants of its Pods.
type ownerKind struct {
	empty func() client.Object
	wants func(ctx context.Context, from ownerSource, object client.Object) (plan.Owner, error)
}

// ownerKinds are the kinds whose objects say what they want.
var ownerKinds = map[schema.GroupVersionKind]ownerKind{
	appsv1.SchemeGroupVersion.WithKind("ReplicaSet"): kindOf(func(set *appsv1.ReplicaSet) plan.Owner {
		return wantsPods(set.Spec.Replicas)
	}),
	corev1.SchemeGroupVersion.WithKind("ReplicationController"): kindOf(func(set *corev1.ReplicationController) plan.Owner {
		return wantsPods(set.Spec.Replicas)
	}),
	batchv1.SchemeGroupVersion.WithKind("Job"):        kindOf(wantsOfJob),
	appsv1.SchemeGroupVersion.WithKind("StatefulSet"): kindOf(wantsOfStatefulSet),
	appsv1alpha1.KindCloneSet:                         kindOf(wantsOfCloneSet),
	appsv1.SchemeGroupVersion.WithKind("DaemonSet"): {
		empty: func() client.Object { return &appsv1.DaemonSet{} }, wants: wantsOfDaemonSet,
	},
}

func kindOf[T any, P object[T]](wants func(P) plan.Owner) ownerKind {
	return ownerKind{
		empty: func() client.Object { return P(new(T)) },
		wants: func(_ context.Context, _ ownerSource, object client.Object) (plan.Owner, error) {
			return wants(object.(P)), nil
		},
	}
}

// selects are the keys of the labels by which an owner selects its Pods, nil if it has no selector: then
// nobody knows.
func selects(object client.Object) []string {
	switch owner := object.(type) {
	case *appsv1.ReplicaSet:
		return keysOf(owner.Spec.Selector)
	case *appsv1.StatefulSet:
		return keysOf(owner.Spec.Selector)
	case *appsv1.DaemonSet:
		return keysOf(owner.Spec.Selector)
	case *batchv1.Job:
		return keysOf(owner.Spec.Selector)
	case *corev1.ReplicationController:
		return keysOf(&metav1.LabelSelector{MatchLabels: owner.Spec.Selector})
	case *appsv1alpha1.CloneSet:
		keys := slices.Collect(maps.Keys(owner.Spec.Selector.MatchLabels))
		return sorted(append(keys, list.Map(owner.Spec.Selector.MatchExpressions, func(e appsv1alpha1.LabelSelectorRequirement) string { return e.Key })...))
	}
	return nil
}

// keysOf are the keys that a selector names, sorted; nil if it is empty.
func keysOf(selector *metav1.LabelSelector) []string {
	if selector == nil {
		return nil
	}
	keys := slices.Collect(maps.Keys(selector.MatchLabels))
	return sorted(append(keys, list.Map(selector.MatchExpressions, func(e metav1.LabelSelectorRequirement) string { return e.Key })...))
}

// sorted returns the keys sorted, each once.
func sorted(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// wantsPods is what an owner wants that counts its Pods: one by default.
func wantsPods(replicas *int32) plan.Owner { return plan.Owner{Replicas: new(ptr.Deref(replicas, 1))} }

// wantsOfJob counts on the conditions that the Job's controller sets before it deletes Pods.
func wantsOfJob(job *batchv1.Job) plan.Owner {
	ends := []batchv1.JobConditionType{
		batchv1.JobComplete, batchv1.JobFailed, batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet,
	}
	over := slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Status == corev1.ConditionTrue && slices.Contains(ends, c.Type)
	})
	if over || ptr.Deref(job.Spec.Suspend, false) {
		return wantsPods(new(int32(0)))
	}
	return wantsPods(job.Spec.Parallelism)
}

// wantsOfStatefulSet: while the set's controller has not seen the last change, nobody knows which
// revision it wants.
func wantsOfStatefulSet(set *appsv1.StatefulSet) plan.Owner {
	owner := wantsPods(set.Spec.Replicas)
	owner.Ordinals, owner.Unknown = true, set.Status.ObservedGeneration < set.Generation
	if set.Spec.Ordinals != nil {
		owner.First = set.Spec.Ordinals.Start
	}
	if set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return owner
	}
	owner.Revision = set.Status.UpdateRevision
	if rolling := set.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
		owner.Partition = owner.First + ptr.Deref(rolling.Partition, 0)
	}
	return owner
}

// wantsOfCloneSet: whoever controls CloneSets deletes their Pods itself.
func wantsOfCloneSet(set *appsv1alpha1.CloneSet) plan.Owner {
	owner := wantsPods(set.Spec.Replicas)
	owner.Acts, owner.Unknown = true, set.Status.ObservedGeneration < set.Generation
	owner.Revision, owner.Named = set.Status.UpdateRevision, map[string]bool{}
	for _, name := range set.Spec.ScaleStrategy.PodsToDelete {
		owner.Named[name] = true
	}
	return owner
}

// wantsOfDaemonSet finds the newest revision of the set. While the set's controller has not seen the
// last change, there may be a newer one.
func wantsOfDaemonSet(ctx context.Context, from ownerSource, object client.Object) (plan.Owner, error) {
	set, newest := object.(*appsv1.DaemonSet), int64(-1)
	owner := plan.Owner{Unknown: set.Status.ObservedGeneration < set.Generation}
	if set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		return owner, nil
	}
	err := from.revisions(ctx, set.Namespace, func(revision *appsv1.ControllerRevision) {
		if metav1.IsControlledBy(revision, set) && revision.Revision > newest {
			newest, owner.Revision = revision.Revision, revision.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
		}
	})
	return owner, err
}

// takesPods reports whether an object is being deleted, and its Pods with it.
func takesPods(object client.Object) bool {
	orphans := slices.Contains(object.GetFinalizers(), metav1.FinalizerOrphanDependents)
	return object.GetDeletionTimestamp() != nil && !orphans
}

// fits reports whether a DaemonSet is to have a Pod on the node, by its labels. A taint that evicts
// counts for all Pods of a node.
func fits(set *appsv1.DaemonSet, node *corev1.Node) bool {
	spec := set.Spec.Template.Spec
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: spec.NodeSelector, Affinity: spec.Affinity}}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err != nil || matches
}
