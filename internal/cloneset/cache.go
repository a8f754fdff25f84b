// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset/write"
)

// This file is what a manager's cache holds for the controller, and how it is indexed.

// For each write of a Pod, the kubelet's included, the API server spends more than half
// its time on the record of who wrote which field (metadata.managedFields), which only
// server-side apply reads. Once dropped, the record stays away until someone applies to
// the Pod. So the controller drops it with the first patch that it sends anyway, from Pods
// that it has made itself, unless someone has applied to the Pod.

// PodCache configures a manager's cache for Pods: everything except the field managers'
// record. Of that it keeps only whether there is one to drop.
func PodCache() cache.ByObject { return cache.ByObject{Transform: transform(shortenRecord)} }

// recordToDrop is a shortened record, shared by all Pods.
var recordToDrop = []metav1.ManagedFieldsEntry{{
	Manager: write.Creator, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:restartPolicy":{}}}`),
}}

func shortenRecord(pod *corev1.Pod) *corev1.Pod {
	record := recordToDrop
	if write.KeepsRecord(pod) {
		record = nil
	}
	pod.ManagedFields = record
	return pod
}

// transform changes the objects of one type before the cache keeps them.
func transform[T any](change func(T) T) toolscache.TransformFunc {
	return func(object any) (any, error) {
		if known, ok := object.(T); ok {
			return change(known), nil
		}
		return object, nil
	}
}

// instanceClaims selects the claims of instances.
func instanceClaims() labels.Selector {
	exists, err := labels.NewRequirement(apps.LabelInstanceID, selection.Exists, nil)
	if err != nil { // the key is a constant
		return labels.Nothing()
	}
	return labels.NewSelector().Add(*exists)
}

// ClaimCache configures a manager's cache for PersistentVolumeClaims: it holds only those
// that a CloneSet created, whatever else the cluster stores.
func ClaimCache() cache.ByObject { return cache.ByObject{Label: instanceClaims()} }

// NodeCache is how the cache must keep nodes: without what nothing here reads, which is
// nearly all of a node.
func NodeCache() cache.ByObject {
	return cache.ByObject{Transform: transform(func(node *corev1.Node) *corev1.Node {
		return &corev1.Node{
			TypeMeta:   node.TypeMeta,
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels},
			Spec:       corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints},
		}
	})}
}

// indexOwner indexes objects by the UID of their controller, and Pods without one under
// orphanKey.
const (
	indexOwner = "usher.dev/owner"
	orphanKey  = "orphan"
)

func ownerOf(object client.Object) []string {
	if owner := metav1.GetControllerOf(object); owner != nil {
		return []string{string(owner.UID)}
	}
	return []string{orphanKey}
}

// PodLister lists Pods of a namespace by the UID of their controller; "orphan" lists
// those without a controller.
type PodLister func(ctx context.Context, namespace, owner string) ([]*corev1.Pod, error)

// byClient lists through a client whose cache has the index.
func byClient(c client.Reader) PodLister {
	return func(ctx context.Context, namespace, owner string) ([]*corev1.Pod, error) {
		var list corev1.PodList
		return listByOwner(ctx, c, &list, &list.Items, namespace, owner)
	}
}

// byIndex lists from an informer's index. A client's list copies each Pod's outermost
// struct: two megabytes for 2,000 Pods, in every pass.
func byIndex(indexer toolscache.Indexer) PodLister {
	return func(_ context.Context, namespace, owner string) ([]*corev1.Pod, error) {
		objects, err := indexer.ByIndex(indexOwner, namespace+"/"+owner)
		if err != nil {
			return nil, fmt.Errorf("list Pods: %w", err)
		}
		pods := make([]*corev1.Pod, 0, len(objects))
		for _, object := range objects {
			pod, ok := object.(*corev1.Pod)
			if !ok {
				return nil, fmt.Errorf("list Pods: the cache holds a %T", object)
			}
			pods = append(pods, pod)
		}
		return pods, nil
	}
}

// indexPods creates the index of Pods, and the lister that reads it.
func indexPods(ctx context.Context, c cache.Cache, reader client.Reader) (PodLister, error) {
	informer, err := c.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch Pods: %w", err)
	}
	shared, ok := informer.(toolscache.SharedIndexInformer)
	if !ok { // a cache of some namespaces has one informer per namespace
		if err := c.IndexField(ctx, &corev1.Pod{}, indexOwner, ownerOf); err != nil {
			return nil, fmt.Errorf("index Pods by owner: %w", err)
		}
		return byClient(reader), nil
	}
	if err := shared.AddIndexers(toolscache.Indexers{indexOwner: ownerInNamespace}); err != nil {
		return nil, fmt.Errorf("index Pods by owner: %w", err)
	}
	return byIndex(shared.GetIndexer()), nil
}

// ownerInNamespace prefixes the key of ownerOf with the namespace.
func ownerInNamespace(object any) ([]string, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	keys := ownerOf(pod)
	for i := range keys {
		keys[i] = pod.Namespace + "/" + keys[i]
	}
	return keys, nil
}
