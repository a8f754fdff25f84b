// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

const (
	// redrawEvery bounds how often a screen is drawn: people do not read faster.
	redrawEvery = 500 * time.Millisecond
	// clockEvery redraws a screen on which nothing but the time changes.
	clockEvery = 5 * time.Second
	clear      = "\x1b[H\x1b[2J"
)

// watch shows the status at each change. Off a terminal, one screen follows the other.
func (s *session) watch(ctx context.Context, t target, o *statusOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed, err := s.changes(ctx)
	if err != nil {
		return err
	}
	clock := time.NewTicker(clockEvery)
	defer clock.Stop()
	pace := rate.NewLimiter(rate.Every(redrawEvery), 1)
	for {
		if err := pace.Wait(ctx); err != nil {
			return err
		}
		if isTerminal(s.Out) {
			tell(s.Out, clear)
		}
		w, err := s.status(ctx, t, o)
		if err != nil || o.until != nil && o.until(w) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-clock.C:
		case <-changed:
		}
	}
}

// changes tells of changes of Pods and CloneSets.
func (s *session) changes(ctx context.Context) (<-chan struct{}, error) {
	changed := make(chan struct{}, 1)
	for _, list := range []client.ObjectList{&corev1.PodList{}, &apps.CloneSetList{}} {
		w, err := s.client.Watch(ctx, list, client.InNamespace(s.namespace))
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
		go forward(w, changed)
	}
	return changed, nil
}

// forward tells of events, several of them as one. After a watch that the API server
// ended, the clock goes on.
func forward(w watch.Interface, changed chan<- struct{}) {
	for range w.ResultChan() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}
