// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// watchPods watches the Pods that are bound to a node.
func (a *Agent) watchPods(ctx context.Context) (informers.SharedInformerFactory, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(a.client, 0,
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		}),
		informers.WithTransform(func(object any) (any, error) {
			if pod, ok := object.(*corev1.Pod); ok {
				pod.ManagedFields = nil
			}
			return object, nil
		}))
	informer := factory.Core().V1().Pods().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { a.observe(object) },
		UpdateFunc: func(before, object any) {
			// An interrupted watch may miss that another Pod of the same name replaced
			// this one.
			if old, ok := before.(*corev1.Pod); ok && old.UID != object.(metav1.Object).GetUID() {
				a.forget(old)
			}
			a.observe(object)
		},
		DeleteFunc: a.forget,
	})
	if err != nil {
		return nil, fmt.Errorf("watch Pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil, fmt.Errorf("watch Pods: %w", context.Cause(ctx))
	}
	return factory, nil
}

// observe records the latest version of a Pod on one of the nodes.
func (a *Agent) observe(object any) {
	observed, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	node := a.nodes[observed.Spec.NodeName]
	if node == nil {
		return
	}
	e := a.entries[observed.UID]
	if e == nil {
		e = &entry{pod: &pod{kubelet: &a.kubelet, uid: observed.UID, node: node.index}}
		a.entries[observed.UID] = e
	}
	e.latest.Store(observed)
	a.queue.Add(observed.UID)
}

// forget records that a Pod's object is gone.
func (a *Agent) forget(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	deleted, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[deleted.UID]; e != nil {
		e.gone.Store(true)
		a.queue.Add(deleted.UID)
	}
}
