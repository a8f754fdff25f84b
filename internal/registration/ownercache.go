// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/notice"
)

// ownerCache is the cache of the owners of Pods, and of nodes. It has only what passes read of them: a
// cluster may have many, and their templates are long.
func ownerCache(mgr ctrl.Manager) (cache.Cache, error) {
	owners, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), DefaultTransform: onlyWants,
	})
	if err != nil {
		return nil, fmt.Errorf("make the cache of owners: %w", err)
	}
	if err := mgr.Add(owners); err != nil {
		return nil, fmt.Errorf("start the cache of owners: %w", err)
	}
	return owners, nil
}

// onlyWants strips what passes do not read of owners and nodes.
func onlyWants(object any) (any, error) {
	full, ok := object.(client.Object)
	if !ok {
		return object, nil
	}
	switch o := full.(type) {
	case *appsv1.ReplicaSet:
		o.Spec, o.Status = appsv1.ReplicaSetSpec{Replicas: o.Spec.Replicas, Selector: short(o.Spec.Selector)}, appsv1.ReplicaSetStatus{}
	case *corev1.ReplicationController:
		selector := short(&metav1.LabelSelector{MatchLabels: o.Spec.Selector})
		o.Spec = corev1.ReplicationControllerSpec{Replicas: o.Spec.Replicas}
		if selector != nil {
			o.Spec.Selector = selector.MatchLabels
		}
		o.Status = corev1.ReplicationControllerStatus{}
	case *batchv1.Job:
		o.Spec = batchv1.JobSpec{Suspend: o.Spec.Suspend, Parallelism: o.Spec.Parallelism, Selector: short(o.Spec.Selector)}
		conditions := list.Map(o.Status.Conditions, func(c batchv1.JobCondition) batchv1.JobCondition {
			return batchv1.JobCondition{Type: c.Type, Status: c.Status}
		})
		o.Status = batchv1.JobStatus{Conditions: conditions}
	case *appsv1.StatefulSet:
		spec, status := &o.Spec, &o.Status
		o.Spec = appsv1.StatefulSetSpec{Replicas: spec.Replicas, Ordinals: spec.Ordinals, UpdateStrategy: spec.UpdateStrategy, Selector: short(spec.Selector)}
		o.Status = appsv1.StatefulSetStatus{ObservedGeneration: status.ObservedGeneration, UpdateRevision: status.UpdateRevision}
	case *appsv1.DaemonSet:
		pod := o.Spec.Template.Spec
		keepSmall(&pod)
		template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeSelector: pod.NodeSelector, Affinity: pod.Affinity}}
		o.Spec = appsv1.DaemonSetSpec{Template: template, UpdateStrategy: o.Spec.UpdateStrategy, Selector: short(o.Spec.Selector)}
		o.Status = appsv1.DaemonSetStatus{ObservedGeneration: o.Status.ObservedGeneration}
	case *appsv1.ControllerRevision:
		o.Data.Raw, o.Data.Object = nil, nil
	case *corev1.Node:
		o.Spec = corev1.NodeSpec{Taints: o.Spec.Taints, Unschedulable: o.Spec.Unschedulable}
		o.Status = corev1.NodeStatus{Conditions: notice.Conditions(o)}
	}
	strip(full)
	return full, nil
}

// short is a selector that is not long; nil for a long one, so that nobody knows how its owner selects Pods.
func short(selector *metav1.LabelSelector) *metav1.LabelSelector {
	if selector == nil || len(encode.JSON(selector)) > longestChoice {
		return nil
	}
	return selector
}

// longestChoice is the longest selector that the cache keeps, and the longest choice of nodes of a DaemonSet, in
// bytes.
const longestChoice = 8 << 10

// keepSmall drops how a template chooses its nodes if that is long: then all nodes count as chosen.
func keepSmall(spec *corev1.PodSpec) {
	size := 0
	for key, value := range spec.NodeSelector {
		size += len(key) + len(value)
	}
	if spec.Affinity != nil {
		size += len(encode.JSON(spec.Affinity))
	}
	if size > longestChoice {
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
