// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// watch keeps a board up to date with the objects of the namespace until ctx ends. It
// returns when the board has all existing objects.
func watch(ctx context.Context, config *rest.Config, b *board) error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	objects, err := cache.New(config, cache.Options{
		Scheme:            scheme,
		DefaultNamespaces: map[string]cache.Config{namespace: {}},
	})
	if err != nil {
		return fmt.Errorf("watch the cluster: %w", err)
	}
	for _, add := range []func() error{
		func() error { return follow(ctx, objects, &corev1.Pod{}, b.podIs, b.podGone) },
		func() error { return follow(ctx, objects, &appsv1alpha1.CloneSet{}, b.setIs, b.setGone) },
		func() error {
			return follow(ctx, objects, &usherv1alpha1.Registration{}, b.registrationIs, b.registrationGone)
		},
	} {
		if err := add(); err != nil {
			return fmt.Errorf("watch the cluster: %w", err)
		}
	}
	go func() {
		// Start ends with ctx, and its error then does not matter; before that it
		// retries on its own.
		_ = objects.Start(ctx)
	}()
	if !objects.WaitForCacheSync(ctx) {
		return errors.Join(errors.New("watch the cluster: interrupted"), ctx.Err())
	}
	return nil
}

// follow passes every object of a kind to is, and every deleted one to gone.
func follow[T client.Object](ctx context.Context, objects cache.Cache, kind T, is, gone func(T)) error {
	informer, err := objects.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	take := func(object any, f func(T)) {
		if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		if typed, ok := object.(T); ok {
			f(typed)
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { take(object, is) },
		UpdateFunc: func(_, object any) { take(object, is) },
		DeleteFunc: func(object any) { take(object, gone) },
	})
	return err
}
