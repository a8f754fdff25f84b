// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/usher-dev/usher/test/traffic"
)

const (
	// plainWorkers is how many requests the plain client sends concurrently.
	plainWorkers = 50
	// warmAtLeast is how long the API server is kept busy before a step, and warmSpread
	// how much longer at most: about the time between two of its garbage collections
	// under that load.
	warmAtLeast = time.Second
	warmSpread  = 4 * time.Second
	// warmSize is the smallest size with such a warm-up.
	warmSize = 50
)

// plainMost bounds how many Pods the plain client changes around each step: what the API server
// takes a second depends little on how many there are.
const plainMost = 1000

// request is one kind of request of the plain client, which sends one for each Pod or entry.
type request struct {
	name string
	send func(ctx context.Context, name string) error
	// image is the image that all Pods run in the end; "" means not to wait for that. gone means that
	// there are no Pods.
	image string
	gone  bool
	// perSecond is how many are sent a second, without waiting for answers; 0 means as many as the
	// workers can send.
	perSecond int
}

// removal returns a request that removes all Pods.
func (m *measurement) removal(name string) request {
	return request{name: name, gone: true, send: func(ctx context.Context, name string) error {
		return m.Kube.Delete(ctx, barePod(name))
	}}
}

// createPod creates a Pod with hooks.
func (m *measurement) createPod(ctx context.Context, name string) error {
	pod := barePod(name)
	pod.Labels = map[string]string{"app": "plain", updateHook: hooked, deleteHook: hooked}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: plainImage(1)}}
	return m.Kube.Create(ctx, pod)
}

func podName(i int) string { return fmt.Sprintf("raw-%05d", i) }

func barePod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// plainImage returns a version of the image that the plain client's Pods run.
func plainImage(version int) string { return fmt.Sprintf("example.test/plain:v%d", version) }

// alone measures what the API server or the registry can do for a plain client before Usher
// starts. The scheduler and the nodes work meanwhile, as they do when Usher writes.
func (m *measurement) alone(ctx context.Context) ([]*result, error) {
	if m.options.Many > 0 {
		return nil, nil // It would take as long again.
	}
	if err := m.warmUp(ctx); err != nil {
		return nil, err
	}
	requests := []request{{name: "create", image: plainImage(1), send: m.createPod}}
	if m.server != nil {
		requests = []request{{name: "put", send: m.server.Put}, {name: "remove", send: m.server.Remove}}
	}
	var results []*result
	for _, a := range requests {
		m.say("%s, no controller: %s", m.where(), a.name)
		r, err := m.request(ctx, a)
		if err != nil {
			return nil, fmt.Errorf("%s, no controller, %s: %w", m.where(), a.name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// staying returns how many Pods of the plain client stay while Usher is measured.
func (m *measurement) staying() int {
	if m.server != nil || m.options.Many > 0 {
		return 0
	}
	return min(m.turn.size, plainMost)
}

// ceiling measures how fast the API server patches the plain client's Pods now.
func (m *measurement) ceiling(ctx context.Context) (*result, error) {
	if err := m.warmUp(ctx); err != nil {
		return nil, err
	}
	m.nodes.begin(containerDelay, 0)
	m.plainVersion++
	next := plainImage(m.plainVersion)
	m.say("%s, the plain client", m.where())
	body := fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":%q}]}}`, next)
	return m.request(ctx, request{name: "patch image", image: next, send: func(ctx context.Context, name string) error {
		return m.Kube.Patch(ctx, barePod(name), client.RawPatch(types.StrategicMergePatchType, []byte(body)))
	}})
}

// request measures one kind of request, and waits until the nodes have done their part.
func (m *measurement) request(ctx context.Context, a request) (*result, error) {
	ctx, cancel := m.bound(ctx)
	defer cancel()
	r := m.result(step{name: a.name, pods: cmp.Or(m.staying(), m.turn.size)})
	r.alone = true
	before, err := m.cpu()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if r.latency, err = sendAll(ctx, a, r.pods); err != nil {
		return nil, err
	}
	r.wall = time.Since(began)
	if r.cpu, err = m.cpuSince(before); err != nil {
		return nil, err
	}
	switch {
	case a.gone:
		err = m.pods.await(ctx, 0, nil)
	case a.image != "":
		err = m.pods.await(ctx, anyNumber, map[string]int{a.image: r.pods})
	}
	r.done = time.Since(began)
	return r, err
}

// sendAll sends a request for each Pod and returns how long each took to be answered.
func sendAll(ctx context.Context, a request, n int) (traffic.Latencies, error) {
	latencies := make(traffic.Latencies, n)
	all, ctx := errgroup.WithContext(ctx)
	pace := rate.NewLimiter(rate.Inf, 0)
	if a.perSecond > 0 {
		pace = rate.NewLimiter(rate.Limit(a.perSecond), 1)
	} else {
		all.SetLimit(plainWorkers)
	}
	for i := range n {
		if err := pace.Wait(ctx); err != nil {
			all.Go(func() error { return err })
			break
		}
		all.Go(func() error {
			began := time.Now()
			err := a.send(ctx, podName(i))
			latencies[i] = time.Since(began)
			return err
		})
	}
	return latencies, all.Wait()
}

// warmUp keeps the API server busy with reads, longer in each round, so that a step begins at once
// afterwards. A garbage collection takes a second of CPU, as much as a step of a hundred Pods. After a
// pause, no collection would be in progress when a step begins, unlike in the middle of a long step;
// and identical rounds would meet them in the same steps. With a registry there are no rounds to
// compare, and results of a few Pods mean little anyway.
func (m *measurement) warmUp(ctx context.Context) error {
	if m.server != nil || m.turn.size < warmSize {
		return nil
	}
	end := time.Now().Add(warmAtLeast + warmSpread*time.Duration(m.turn.round)/time.Duration(m.turn.of))
	all, ctx := errgroup.WithContext(ctx)
	for range plainWorkers {
		all.Go(func() error {
			for time.Now().Before(end) {
				if err := m.Kube.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{}); err != nil {
					return fmt.Errorf("keep the API server busy: %w", err)
				}
			}
			return nil
		})
	}
	return all.Wait()
}
