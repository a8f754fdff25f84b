// SPDX-License-Identifier: Apache-2.0

package cloneset

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
