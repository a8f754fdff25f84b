// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
)

// leave deletes a namespace while the next stories play: first its set, and the rest
// once no Pods are left. A namespace that is deleted with Pods in it is checked again
// only after half of their grace period. Whatever remains at the end fails the run.
func (s *session) leave(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	at := metav1.ObjectMeta{Namespace: name, Name: SetName}
	_ = s.kube.Delete(ctx, &appsv1alpha1.CloneSet{ObjectMeta: at})
	s.world.until(ctx, name, func(now State) bool { return now.Set == nil && len(now.Pods) == 0 })
	_ = s.kube.Delete(ctx, &usherv1alpha1.Registration{ObjectMeta: at})
	s.world.until(ctx, name, func(now State) bool { return now.Registration == nil })
	_ = s.kube.Delete(context.WithoutCancel(ctx), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// until waits until a namespace meets a condition, or ctx ends.
func (w *world) until(ctx context.Context, namespace string, so func(State) bool) {
	for {
		news := w.next()
		if now, err := w.state(ctx, namespace); err != nil || so(now) {
			return
		}
		select {
		case <-news:
		case <-ctx.Done():
			return
		}
	}
}

// awaitEmpty waits until all namespaces of stories are gone: nothing may be stuck on a
// finalizer.
func (s *session) awaitEmpty(ctx context.Context, stories []Story) error {
	s.leaving.Wait()
	deadline := time.After(patience)
	for {
		left, err := s.left(ctx, stories)
		if err != nil || len(left) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline:
			return fmt.Errorf("%s after their stories have ended these namespaces are still there: %s", patience, strings.Join(left, ", "))
		case <-time.After(lookAgain):
		}
	}
}

func (s *session) left(ctx context.Context, stories []Story) ([]string, error) {
	var left []string
	for _, story := range stories {
		err := s.kube.Get(ctx, client.ObjectKey{Name: story.Name}, &corev1.Namespace{})
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err == nil {
			left = append(left, story.Name)
		}
	}
	return left, nil
}
