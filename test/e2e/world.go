// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

func newScheme() (*runtime.Scheme, error) {
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, appsv1alpha1.AddToScheme, usherv1alpha1.AddToScheme} {
		if err := add(all); err != nil {
			return nil, fmt.Errorf("register API types: %w", err)
		}
	}
	return all, nil
}

// world is what is known of the cluster; it wakes whoever waits for a change.
type world struct {
	objects cache.Cache

	mu      sync.Mutex
	changed chan struct{}
}

// watchWorld watches the cluster until ctx ends. It returns when it knows all existing
// objects.
func watchWorld(ctx context.Context, config *rest.Config, all *runtime.Scheme) (*world, error) {
	objects, err := cache.New(config, cache.Options{Scheme: all, DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		return nil, fmt.Errorf("watch the cluster: %w", err)
	}
	w := &world{objects: objects, changed: make(chan struct{})}
	for _, kind := range []client.Object{&corev1.Pod{}, &corev1.Node{}, &appsv1alpha1.CloneSet{}, &usherv1alpha1.Registration{}} {
		informer, err := objects.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watch the cluster: %w", err)
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { w.wake() },
			UpdateFunc: func(any, any) { w.wake() },
			DeleteFunc: func(any) { w.wake() },
		})
		if err != nil {
			return nil, fmt.Errorf("watch the cluster: %w", err)
		}
	}
	go func() {
		// It ends with ctx, and retries on its own before that.
		_ = objects.Start(ctx)
	}()
	if !objects.WaitForCacheSync(ctx) {
		return nil, errors.Join(errors.New("watch the cluster: interrupted"), ctx.Err())
	}
	return w, nil
}

func (w *world) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

// next is closed at the next change.
func (w *world) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// state returns the present state of a namespace.
func (w *world) state(ctx context.Context, namespace string) (State, error) {
	var s State
	key := client.ObjectKey{Namespace: namespace, Name: SetName}
	set, reg, pods := &appsv1alpha1.CloneSet{}, &usherv1alpha1.Registration{}, &corev1.PodList{}
	if err := w.objects.Get(ctx, key, set); client.IgnoreNotFound(err) != nil {
		return s, err
	} else if err == nil {
		s.Set = set
	}
	if err := w.objects.Get(ctx, key, reg); client.IgnoreNotFound(err) != nil {
		return s, err
	} else if err == nil {
		s.Registration = reg
	}
	if err := w.objects.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		return s, err
	}
	for _, pod := range pods.Items {
		if ownedBy(&pod, SetName) {
			s.Pods = append(s.Pods, pod)
		}
	}
	slices.SortFunc(s.Pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return s, nil
}
