// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/kube"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/plan"
)

// ownerSource is where owners are read: live, or from the caches, whose objects are small.
type ownerSource struct {
	client.Reader
	live bool
}

// revisions has each ControllerRevision of a namespace looked at, and keeps none: live ones may be large, and come in pages.
func (s ownerSource) revisions(ctx context.Context, namespace string, look func(*appsv1.ControllerRevision) (*appsv1.ControllerRevision, bool)) error {
	const what = "ControllerRevisions"
	if s.live {
		_, err := kube.ListKept(ctx, s.Reader, what, &appsv1.ControllerRevisionList{}, look, client.InNamespace(namespace))
		return err
	}
	all, err := kube.List[*appsv1.ControllerRevision](ctx, s.Reader, what, &appsv1.ControllerRevisionList{}, client.InNamespace(namespace))
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
		return plan.Owner{Replicas: new(ptr.Deref(set.Spec.Replicas, 1))}
	}),
	corev1.SchemeGroupVersion.WithKind("ReplicationController"): kindOf(func(set *corev1.ReplicationController) plan.Owner {
		return plan.Owner{Replicas: new(ptr.Deref(set.Spec.Replicas, 1))}
	}),
	batchv1.SchemeGroupVersion.WithKind("Job"):          kindOf(wantsOfJob),
	appsv1.SchemeGroupVersion.WithKind("StatefulSet"):   kindOf(wantsOfStatefulSet),
	appsv1alpha1.KindCloneSet:                           kindOf(wantsOfCloneSet),
	appsv1.SchemeGroupVersion.WithKind(kindOfDaemonSet): {func() client.Object { return &appsv1.DaemonSet{} }, wantsOfDaemonSet},
}

const kindOfDaemonSet = "DaemonSet"

func kindOf[T any, P object[T]](wants func(P) plan.Owner) ownerKind {
	return ownerKind{
		empty: func() client.Object { return P(new(T)) },
		wants: func(_ context.Context, _ ownerSource, object client.Object) (plan.Owner, error) {
			return wants(object.(P)), nil
		},
	}
}

// wantsOfJob counts on the conditions that the Job's controller sets before it deletes Pods.
func wantsOfJob(job *batchv1.Job) plan.Owner {
	over := slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Status == corev1.ConditionTrue &&
			slices.Contains([]batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed, batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet}, c.Type)
	})
	if over || ptr.Deref(job.Spec.Suspend, false) {
		return plan.Owner{Replicas: new(int32(0))}
	}
	return plan.Owner{Replicas: new(ptr.Deref(job.Spec.Parallelism, 1))}
}

// wantsOfStatefulSet takes any revision for wanted while the set's controller has not seen the last change.
func wantsOfStatefulSet(set *appsv1.StatefulSet) plan.Owner {
	owner := plan.Owner{Replicas: new(ptr.Deref(set.Spec.Replicas, 1)), Ordinals: true}
	if set.Spec.Ordinals != nil {
		owner.First = set.Spec.Ordinals.Start
	}
	if set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType || set.Status.ObservedGeneration < set.Generation {
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
	owner := plan.Owner{Replicas: new(ptr.Deref(set.Spec.Replicas, 1)), Acts: true, Named: map[string]bool{}}
	for _, name := range set.Spec.ScaleStrategy.PodsToDelete {
		owner.Named[name] = true
	}
	if set.Status.ObservedGeneration >= set.Generation {
		owner.Revision = set.Status.UpdateRevision
	}
	return owner
}

// wantsOfDaemonSet finds the newest revision of the set.
func wantsOfDaemonSet(ctx context.Context, from ownerSource, object client.Object) (plan.Owner, error) {
	owner, newest := plan.Owner{}, int64(-1)
	look := func(revision *appsv1.ControllerRevision) (*appsv1.ControllerRevision, bool) {
		if metav1.IsControlledBy(revision, object) && revision.Revision > newest {
			newest, owner.Revision = revision.Revision, revision.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
		}
		return nil, false // their content may be large
	}
	err := from.revisions(ctx, object.GetNamespace(), look)
	if set := object.(*appsv1.DaemonSet); set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType || set.Status.ObservedGeneration < set.Generation {
		owner.Revision = ""
	}
	return owner, err
}

// readOwners reads the owners and nodes of the Pods that carry requests for their deletion.
func (p *pass) readOwners(ctx context.Context) error {
	began := p.clock.Now()
	defer func() { p.spent += p.clock.Now().Sub(began) }()
	p.snapshot.Owners, p.snapshot.Nodes = map[plan.OwnerRef]plan.Owner{}, map[string]plan.Node{}
	owners := ownersOfPods{pass: p, from: ownerSource{p.owners, false}, read: map[plan.OwnerRef]readOwner{}}
	for _, pod := range p.snapshot.Pods {
		if _, asked := pod.Annotations[usherv1alpha1.AnnotationDeletionRequest]; !asked || pod.DeletionTimestamp != nil {
			continue
		}
		node, err := read[corev1.Node](ctx, p.owners, "Node", types.NamespacedName{Name: pod.Spec.NodeName})
		if err != nil {
			return err
		}
		p.snapshot.Nodes[pod.Spec.NodeName] = nodeOf(node)
		owners.add(ctx, pod)
	}
	return nil
}

// nodeOf is what plans read of a node; there may be none.
func nodeOf(node *corev1.Node) plan.Node {
	if node == nil {
		return plan.Node{}
	}
	evicts := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute })
	return plan.Node{Evicts: evicts, Cordoned: node.Spec.Unschedulable}
}

// readOwner is an owner that was read: its object is nil if it is gone, or of a kind that says nothing.
type readOwner struct {
	wants  plan.Owner
	object client.Object
}

// ownersOfPods reads each owner that Pods name once.
type ownersOfPods struct {
	*pass
	from ownerSource
	read map[plan.OwnerRef]readOwner
}

// add puts what the Pod's owner wants into the snapshot. One that cannot be read is unknown in this pass, and another
// pass follows: whoever names it must hold up no other Pod.
func (o *ownersOfPods) add(ctx context.Context, pod *corev1.Pod) {
	ref := plan.OwnerOf(pod)
	if ref == nil {
		return
	}
	one, known := o.read[*ref]
	if !known {
		from := o.from
		if !from.live && ref.Kind == appsv1alpha1.KindCloneSet.Kind {
			from.Reader = o.client // which has them for other reasons
		}
		var err error
		if one, err = wantsOf(ctx, from, pod.Namespace, ref); err != nil {
			log.FromContext(ctx).Error(err, "Cannot read the owner of a Pod", keyPod, pod.Name, "owner", ref.Kind+"/"+ref.Name)
			one.wants = plan.Owner{Unknown: true}
			o.again(refusedRetry)
		}
		o.read[*ref], o.snapshot.Owners[*ref] = one, one.wants
	}
	if set, ok := one.object.(*appsv1.DaemonSet); ok {
		o.judgeNode(ctx, *ref, set, pod.Spec.NodeName)
	}
}

// judgeNode notes whether a DaemonSet is to have no Pod on a node.
func (o *ownersOfPods) judgeNode(ctx context.Context, ref plan.OwnerRef, set *appsv1.DaemonSet, name string) {
	node, err := read[corev1.Node](ctx, o.owners, "Node", types.NamespacedName{Name: name})
	if err != nil || node == nil || fits(set, node) {
		return
	}
	owner := o.snapshot.Owners[ref]
	unfit := map[string]bool{name: true}
	maps.Copy(unfit, owner.Unfit)
	owner.Unfit = unfit
	o.snapshot.Owners[ref] = owner
}

// wantsOf reads an owner, and what it wants. A name that no object can have is that of none.
func wantsOf(ctx context.Context, from ownerSource, namespace string, ref *plan.OwnerRef) (one readOwner, err error) {
	kind, readable := ownerKinds[schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)]
	if !readable {
		return readOwner{wants: plan.Owner{Unknown: true}}, nil
	}
	gone := readOwner{wants: plan.Owner{Gone: true}}
	if !plan.IsName(ref.Name) {
		return gone, nil
	}
	object := kind.empty()
	err = from.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, object)
	switch {
	case apierrors.IsNotFound(err), err == nil && object.GetUID() != ref.UID:
		return gone, nil
	case err != nil:
		return one, fmt.Errorf("read %s %s: %w", ref.Kind, ref.Name, err)
	}
	if set, ok := object.(*appsv1.DaemonSet); ok {
		keepSmall(&set.Spec.Template.Spec)
	}
	one.object = object
	one.wants, err = kind.wants(ctx, from, object)
	one.wants.Gone = takesPods(object)
	return one, err
}

// takesPods reports whether an object is being deleted, and its Pods with it.
func takesPods(object client.Object) bool {
	return object.GetDeletionTimestamp() != nil && !slices.Contains(object.GetFinalizers(), metav1.FinalizerOrphanDependents)
}

// fits reports whether a DaemonSet is to have a Pod on the node, by its labels. A taint that evicts counts for all
// Pods of a node.
func fits(set *appsv1.DaemonSet, node *corev1.Node) bool {
	spec := set.Spec.Template.Spec
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: spec.NodeSelector, Affinity: spec.Affinity}}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err != nil || matches
}

// onlyWants strips what passes do not read of owners and nodes.
func onlyWants(object any) (any, error) {
	full, ok := object.(client.Object)
	if !ok {
		return object, nil
	}
	switch o := full.(type) {
	case *appsv1.ReplicaSet:
		o.Spec, o.Status = appsv1.ReplicaSetSpec{Replicas: o.Spec.Replicas}, appsv1.ReplicaSetStatus{}
	case *corev1.ReplicationController:
		o.Spec, o.Status = corev1.ReplicationControllerSpec{Replicas: o.Spec.Replicas}, corev1.ReplicationControllerStatus{}
	case *batchv1.Job:
		o.Spec = batchv1.JobSpec{Suspend: o.Spec.Suspend, Parallelism: o.Spec.Parallelism}
		o.Status = batchv1.JobStatus{Conditions: list.Map(o.Status.Conditions, func(c batchv1.JobCondition) batchv1.JobCondition {
			return batchv1.JobCondition{Type: c.Type, Status: c.Status}
		})}
	case *appsv1.StatefulSet:
		o.Spec = appsv1.StatefulSetSpec{Replicas: o.Spec.Replicas, Ordinals: o.Spec.Ordinals, UpdateStrategy: o.Spec.UpdateStrategy}
		o.Status = appsv1.StatefulSetStatus{ObservedGeneration: o.Status.ObservedGeneration, UpdateRevision: o.Status.UpdateRevision}
	case *appsv1.DaemonSet:
		pod := o.Spec.Template.Spec
		keepSmall(&pod)
		template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeSelector: pod.NodeSelector, Affinity: pod.Affinity}}
		o.Spec = appsv1.DaemonSetSpec{Template: template, UpdateStrategy: o.Spec.UpdateStrategy}
		o.Status = appsv1.DaemonSetStatus{ObservedGeneration: o.Status.ObservedGeneration}
	case *appsv1.ControllerRevision:
		o.Data.Raw, o.Data.Object = nil, nil
	case *corev1.Node:
		o.Spec, o.Status = corev1.NodeSpec{Taints: o.Spec.Taints, Unschedulable: o.Spec.Unschedulable}, corev1.NodeStatus{}
	}
	strip(full)
	return full, nil
}

// mostOfNodes bounds what the cache keeps of how a DaemonSet chooses its nodes, in bytes.
const mostOfNodes = 8 << 10

// keepSmall drops how a template chooses its nodes if that is long: then all nodes count as chosen.
func keepSmall(spec *corev1.PodSpec) {
	size := 0
	for key, value := range spec.NodeSelector {
		size += len(key) + len(value)
	}
	if spec.Affinity != nil {
		size += len(encode.JSON(spec.Affinity))
	}
	if size > mostOfNodes {
		spec.NodeSelector, spec.Affinity = nil, nil
	}
}

// strip leaves of an object's metadata what passes read.
func strip(o client.Object) {
	o.SetManagedFields(nil)
	o.SetAnnotations(nil)
	controller := metav1.GetControllerOf(o)
	if _, isRevision := o.(*appsv1.ControllerRevision); isRevision && controller != nil {
		o.SetOwnerReferences([]metav1.OwnerReference{*controller})
	} else {
		o.SetOwnerReferences(nil)
	}
	orphans := slices.Contains(o.GetFinalizers(), metav1.FinalizerOrphanDependents)
	if o.SetFinalizers(nil); orphans {
		o.SetFinalizers([]string{metav1.FinalizerOrphanDependents})
	}
	labels := o.GetLabels()
	if _, isNode := o.(*corev1.Node); !isNode {
		hash, has := labels[appsv1.DefaultDaemonSetUniqueLabelKey]
		labels = nil
		if has {
			labels = map[string]string{appsv1.DefaultDaemonSetUniqueLabelKey: hash}
		}
	}
	o.SetLabels(labels)
}
