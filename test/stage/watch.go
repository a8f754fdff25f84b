// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Follow is a kind of objects to watch.
type Follow func(ctx context.Context, objects cache.Cache) error

// On passes every new or changed object of a kind to is, and every deleted one to gone.
func On[T client.Object](kind T, is, gone func(T)) Follow {
	take := func(object any, f func(T)) {
		if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		if typed, ok := object.(T); ok {
			f(typed)
		}
	}
	return func(ctx context.Context, objects cache.Cache) error {
		informer, err := objects.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { take(object, is) },
			UpdateFunc: func(_, object any) { take(object, is) },
			DeleteFunc: func(object any) { take(object, gone) },
		})
		return err
	}
}

// Watch watches the objects of a namespace ("" is all) until ctx ends, and keeps them in
// a cache. It returns when the cache has all existing ones.
func Watch(ctx context.Context, config *rest.Config, kube client.Client, namespace string, kinds ...Follow) (cache.Cache, error) {
	objects, err := cache.New(config, cache.Options{
		Scheme: kube.Scheme(), DefaultNamespaces: map[string]cache.Config{namespace: {}}, DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("watch the cluster: %w", err)
	}
	for _, follow := range kinds {
		if err := follow(ctx, objects); err != nil {
			return nil, fmt.Errorf("watch the cluster: %w", err)
		}
	}
	// It ends with ctx, and retries on its own before that.
	go func() { _ = objects.Start(ctx) }()
	if !objects.WaitForCacheSync(ctx) {
		return nil, errors.Join(errors.New("watch the cluster: interrupted"), context.Cause(ctx))
	}
	return objects, nil
}

// Watched guards state that watches change, and wakes those who wait for a condition on
// it. The zero value is ready to use.
type Watched struct {
	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil if nobody waits
}

// Change makes a change to the state.
func (w *Watched) Change(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// Read reads the state.
func (w *Watched) Read(read func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	read()
}

// Next returns a channel that is closed at the next change.
func (w *Watched) Next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next()
}

func (w *Watched) next() <-chan struct{} {
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.changed
}

// Await waits until missing, which may read the state, returns nothing.
func (w *Watched) Await(ctx context.Context, missing func() string) error {
	for {
		w.mu.Lock()
		lacks, next := missing(), w.next()
		w.mu.Unlock()
		if lacks == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", lacks, context.Cause(ctx))
		case <-next:
		}
	}
}
