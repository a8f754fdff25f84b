// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
)

// handWorkers is how many Pods the plain client updates concurrently: Usher's default.
const handWorkers = 32

// hand updates Pods in place as a plain client does that knows the next step: out of
// service, the new image, in service again as soon as a watch shows that the nodes are
// done. This is the fastest that the protocol allows a controller.
type hand struct {
	image string

	mu   sync.Mutex
	done map[string]chan struct{} // by the name of the Pod; closed when its node is done
}

func newHand(image string) *hand { return &hand{image: image, done: map[string]chan struct{}{}} }

// saw receives a Pod from the watch.
func (h *hand) saw(pod *corev1.Pod) {
	if !h.finished(pod) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if done, waits := h.done[pod.Name]; waits {
		close(done)
		delete(h.done, pod.Name)
	}
}

// finished reports whether the node runs the new image, regardless of whether callers
// may use the Pod.
func (h *hand) finished(pod *corev1.Pod) bool {
	if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].Image != h.image {
		return false
	}
	return isTrue(pod, corev1.ContainersReady)
}

// expect returns a channel that is closed when the Pod's node is done.
func (h *hand) expect(pod string) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	done := make(chan struct{})
	h.done[pod] = done
	return done
}

// byHand measures an in-place update of n Pods with a readiness gate, driven only by a
// plain client.
func (s *session) byHand(ctx context.Context, n int) (Ceiling, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	prepare := []ask{
		{name: "create with a gate", send: s.createGated},
		{name: "into service", send: s.gate("True", ""), then: image(1)},
	}
	for _, a := range prepare {
		if err := s.plain(ctx, a, n); err != nil {
			return Ceiling{}, fmt.Errorf("%s: %w", a.name, err)
		}
	}
	h := newHand(image(2))
	s.hand.Store(h)
	defer s.hand.Store(nil)
	c, err := s.ceiling(ctx, ask{name: ceilingByHand, workers: handWorkers, send: s.updateByHand(h), then: h.image}, n)
	if err != nil {
		return c, err
	}
	return c, s.plain(ctx, ask{gone: true, send: s.deleteRaw}, n)
}

// plain sends a request for each Pod, and waits until the Pods have reached the result.
func (s *session) plain(ctx context.Context, a ask, n int) error {
	_, version, err := sendAll(ctx, a, n)
	if err != nil {
		return err
	}
	return s.settle(ctx, a, n, version)
}

// createGated creates a Pod that waits for its readiness gate.
func (s *session) createGated(ctx context.Context, pod string) (uint64, error) {
	return s.createPod(ctx, pod, corev1.PodReadinessGate{ConditionType: apps.ConditionInPlaceUpdateReady})
}

// gate opens or closes the Pod's readiness gate and sets labels on it.
func (s *session) gate(status, labels string) func(context.Context, string) (uint64, error) {
	return func(ctx context.Context, pod string) (uint64, error) {
		return s.patch(ctx, pod, types.StrategicMergePatchType, fmt.Sprintf(
			`{"metadata":{"labels":{%s}},"status":{"conditions":[{"type":%q,"status":%q,"lastTransitionTime":%q}]}}`,
			labels, apps.ConditionInPlaceUpdateReady, status, time.Now().UTC().Format(time.RFC3339)), "status")
	}
}

// updateByHand takes one Pod through its update.
func (s *session) updateByHand(h *hand) func(context.Context, string) (uint64, error) {
	label := func(state apps.LifecycleState) string { return fmt.Sprintf("%q:%q", apps.LabelLifecycleState, state) }
	leave, enter := s.gate("False", label(apps.StateUpdating)), s.gate("True", label(apps.StateNormal))
	image := fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":%q}]}}`, h.image)
	return func(ctx context.Context, pod string) (uint64, error) {
		if _, err := leave(ctx, pod); err != nil {
			return 0, err
		}
		done := h.expect(pod)
		if _, err := s.patch(ctx, pod, types.StrategicMergePatchType, image); err != nil {
			return 0, err
		}
		select {
		case <-done:
		case <-ctx.Done():
			return 0, fmt.Errorf("the node of Pod %s does not run %s: %w", pod, h.image, context.Cause(ctx))
		}
		return enter(ctx, pod)
	}
}

// patch writes to a Pod and returns its resulting version.
func (s *session) patch(ctx context.Context, pod string, kind types.PatchType, body string, sub ...string) (uint64, error) {
	written, err := s.pods.CoreV1().Pods(namespace).Patch(ctx, pod, kind, []byte(body), metav1.PatchOptions{}, sub...)
	if err != nil {
		return 0, err
	}
	return versionOf(written), nil
}
