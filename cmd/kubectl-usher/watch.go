// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/internal/view"
)

const (
	// redrawEvery bounds how often a screen is drawn: people do not read faster.
	redrawEvery = 500 * time.Millisecond
	// clockEvery redraws a screen on which nothing but the time changes.
	clockEvery = 5 * time.Second
	// restFactor is how many times longer than drawing a screen the pause after it is, so
	// that 2,000 Pods cost no more of a processor than 20.
	restFactor = 50
	// A screen replaces the one before without flicker: each line clears the rest of the
	// old one, and the last line what follows.
	home, lineEnd, below = "\x1b[H", "\x1b[K\n", "\x1b[J"
)

// watch shows the status at each change. Off a terminal, one screen follows the other.
func (s *session) watch(ctx context.Context, t target, o *statusOptions) error {
	// The first screen comes from the API server itself, whose answer says what is missing.
	began := time.Now()
	w, err := s.load(ctx, t)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	live, changed, err := s.follow(ctx, cancel, &t)
	if err != nil {
		return err
	}
	for {
		if err := s.show(&w, o); err != nil || o.until != nil && o.until(&w) {
			return err
		}
		if err := pause(ctx, max(redrawEvery, min(restFactor*time.Since(began), clockEvery)), changed); err != nil {
			return err
		}
		began = time.Now()
		if w, err = live.load(ctx, t); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
}

// pause waits that long, and then for a change or the clock.
func pause(ctx context.Context, least time.Duration, changed <-chan struct{}) error {
	clock := time.NewTimer(least)
	defer clock.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-clock.C:
	}
	clock.Reset(clockEvery)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-clock.C:
	case <-changed:
	}
	return nil
}

// follow returns a session that reads what watches have brought, and tells of changes. It
// ends ctx if the user may not watch.
func (s *session) follow(ctx context.Context, end context.CancelCauseFunc, t *target) (*session, <-chan struct{}, error) {
	objects, err := s.newCache(func(ctx context.Context, r *toolscache.Reflector, err error) {
		if apierrors.IsForbidden(err) {
			end(failed(err, "watch %s", r.TypeDescription()))
			return
		}
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	})
	if err != nil {
		return nil, nil, err
	}
	changed := make(chan struct{}, 1)
	for _, object := range []client.Object{&corev1.Pod{}, t.object()} {
		informer, err := objects.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, nil, failed(err, "watch %s", t)
		}
		if _, err := informer.AddEventHandler(telling(changed)); err != nil {
			return nil, nil, fmt.Errorf("watch %s: %w", t, err)
		}
	}
	go func() {
		if err := objects.Start(ctx); err != nil {
			end(fmt.Errorf("watch %s: %w", t, err))
		}
	}()
	live := *s
	live.reader = objects
	return &live, changed, nil
}

// newCache is of what watches bring of the session's namespace.
func (s *session) newCache(onError toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
	objects, err := cache.New(s.config, cache.Options{
		Scheme: s.client.Scheme(), Mapper: s.mapper, DefaultNamespaces: map[string]cache.Config{s.namespace: {}},
		DefaultTransform: cache.TransformStripManagedFields(), DefaultUnsafeDisableDeepCopy: ptr.To(true),
		DefaultWatchErrorHandler: onError,
	})
	if err != nil {
		return nil, fmt.Errorf("watch namespace %s: %w", s.namespace, err)
	}
	return objects, nil
}

// telling tells of events, several of them as one.
func telling(changed chan<- struct{}) toolscache.ResourceEventHandler {
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { tell() }, UpdateFunc: func(any, any) { tell() }, DeleteFunc: func(any) { tell() },
	}
}

// show draws a screen over the one before; off a terminal, and for programs, below it.
func (s *session) show(w *view.Workload, o *statusOptions) error {
	var screen bytes.Buffer
	p := s.page()
	p.out = &screen
	file, terminal := s.Out.(*os.File)
	terminal = terminal && isTerminal(file) && (o.output == "" || o.output == "wide")
	if terminal {
		if width, height, err := term.GetSize(int(file.Fd())); err == nil {
			p.width, p.height = width, height
		}
	}
	if err := p.print(w, o); err != nil {
		return err
	}
	text := screen.String()
	if terminal {
		text = home + strings.ReplaceAll(text, "\n", lineEnd) + below
	}
	tell(s.Out, "%s", text)
	return nil
}
