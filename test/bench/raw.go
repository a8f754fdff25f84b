// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// rawWorkers is how many requests the plain client sends concurrently.
const rawWorkers = 50

// ask is one kind of request of the plain client: it returns the resulting version of
// the Pod, 0 if there is none.
type ask struct {
	name string
	send func(ctx context.Context, pod string) (uint64, error)
	// workers is the number of concurrent requests; 0 means rawWorkers.
	workers int
	// then is the image that all Pods run in the end; "" not to wait for that.
	then string
	gone bool // there are no Pods in the end
}

// raw sends each kind of request for each of n Pods, with no controller but the
// scheduler and the nodes. Those work while requests are still being sent, as they do
// when Usher writes.
func (s *session) raw(ctx context.Context, n int) ([]Ceiling, error) {
	var ceilings []Ceiling
	for _, a := range s.asks() {
		s.say("%s Pods, no controller: %s", group(n), a.name)
		c, err := s.ceiling(ctx, a, n)
		if err != nil {
			return ceilings, fmt.Errorf("%d Pods, no controller, %s: %w", n, a.name, err)
		}
		ceilings = append(ceilings, c)
	}
	s.say("%s Pods, no controller: %s", group(n), ceilingByHand)
	c, err := s.byHand(ctx, n)
	if err != nil {
		return ceilings, fmt.Errorf("%d Pods, no controller, %s: %w", n, ceilingByHand, err)
	}
	return append(ceilings, c), nil
}

func (s *session) asks() []ask {
	patch := func(kind types.PatchType, body string, sub ...string) func(context.Context, string) (uint64, error) {
		return func(ctx context.Context, pod string) (uint64, error) { return s.patch(ctx, pod, kind, body, sub...) }
	}
	merge := types.StrategicMergePatchType
	return []ask{
		{name: ceilingCreate, send: s.createRaw, then: image(1)},
		{name: ceilingMetadata, send: patch(types.MergePatchType, labelPatch("measure.usher.dev/touched", `"true"`)), then: image(1)},
		{name: ceilingStatus, then: image(1), send: patch(merge,
			`{"status":{"conditions":[{"type":"measure.usher.dev/Touched","status":"True"}]}}`, "status")},
		{name: ceilingImage, then: image(2), send: patch(merge,
			fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":%q}]}}`, image(2)))},
		{name: ceilingDelete, gone: true, send: s.deleteRaw},
	}
}

func (s *session) deleteRaw(ctx context.Context, pod string) (uint64, error) {
	return 0, s.pods.CoreV1().Pods(namespace).Delete(ctx, pod, metav1.DeleteOptions{})
}

// createRaw creates a Pod like the CloneSet's, except for the owner and the readiness
// gate, which needs a controller.
func (s *session) createRaw(ctx context.Context, pod string) (uint64, error) {
	return s.createPod(ctx, pod)
}

func (s *session) createPod(ctx context.Context, pod string, gates ...corev1.PodReadinessGate) (uint64, error) {
	created, err := s.pods.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Labels: podLabels()},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image(1)}}, ReadinessGates: gates},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	return versionOf(created), nil
}

// ceiling measures one kind of request, and waits until the nodes have done their part.
func (s *session) ceiling(ctx context.Context, a ask, n int) (Ceiling, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	before, err := s.cpu()
	if err != nil {
		return Ceiling{}, err
	}
	began := time.Now()
	latencies, version, err := sendAll(ctx, a, n)
	took := time.Since(began)
	if err != nil {
		return Ceiling{}, err
	}
	after, err := s.cpu()
	if err != nil {
		return Ceiling{}, err
	}
	if err := s.settle(ctx, a, n, version); err != nil {
		return Ceiling{}, err
	}
	return Ceiling{
		Name: a.name, Seconds: took.Seconds(), SettledSeconds: time.Since(began).Seconds(),
		PerSecond: float64(len(latencies)) / took.Seconds(), Latency: distribute(latencies), CPU: after.since(before),
	}, nil
}

// settle waits until a watch shows the result of a request on all Pods.
func (s *session) settle(ctx context.Context, a ask, n int, version uint64) error {
	if a.gone {
		n = 0
	}
	if err := s.crowd.awaitVersion(ctx, version); err != nil || (a.then == "" && !a.gone) {
		return err
	}
	return s.crowd.await(ctx, n, a.then)
}

// sendAll sends a request for each Pod and returns how long each took to be answered,
// and the last resulting version.
func sendAll(ctx context.Context, a ask, n int) (latencies []time.Duration, version uint64, err error) {
	latencies = make([]time.Duration, n)
	versions := make([]uint64, n)
	workers := cmp.Or(a.workers, rawWorkers)
	failures := make([]error, workers)
	numbers := make(chan int, n)
	for i := range n {
		numbers <- i
	}
	close(numbers)
	var working sync.WaitGroup
	for w := range workers {
		working.Go(func() {
			for i := range numbers {
				began := time.Now()
				versions[i], failures[w] = a.send(ctx, fmt.Sprintf("raw-%05d", i))
				latencies[i] = time.Since(began)
				if failures[w] != nil {
					return
				}
			}
		})
	}
	working.Wait()
	for _, v := range versions {
		version = max(version, v)
	}
	return latencies, version, errors.Join(failures...)
}
