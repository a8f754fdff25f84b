// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/cluster/process"
)

// session is a measurement on its stage.
type session struct {
	*stage
	limit time.Duration // of a phase
	say   func(format string, args ...any)
	fail  func(error)
	crowd *crowd
	word  *word
	hooks *answerer
	hand  atomic.Pointer[hand] // nil unless the plain client updates Pods
	audit *auditLog
	meter meter
}

// newSession watches the stage until ctx ends. The returned function waits until the
// watches have ended.
func newSession(ctx context.Context, s *stage, limit time.Duration, fail func(error), say func(string, ...any)) (*session, func()) {
	hooks := newAnswerer(s.pods, fail)
	m := &session{
		stage: s, limit: limit, say: say, fail: fail, hooks: hooks,
		word: newWord(), audit: &auditLog{path: s.auditLog()},
	}
	m.crowd = newCrowd(time.Now, m.saw)
	var running sync.WaitGroup
	running.Go(func() { hooks.run(ctx) })
	running.Go(func() { s.guard(ctx, fail) })
	running.Go(func() {
		podWatch := cache.NewListWatchFromClient(s.pods.CoreV1().RESTClient(), "pods", namespace, fields.Everything())
		cache.NewReflector(podWatch, &corev1.Pod{}, m.crowd, 0).RunWithContext(ctx)
	})
	running.Go(func() { cache.NewReflector(m.setWatch(), &apps.CloneSet{}, m.word, 0).RunWithContext(ctx) })
	return m, running.Wait
}

// saw passes on what the watch has reported.
func (s *session) saw(pod *corev1.Pod, before apps.LifecycleState) {
	s.hooks.saw(pod, before)
	if h := s.hand.Load(); h != nil {
		h.saw(pod)
	}
}

func (s *session) setWatch() cache.ListerWatcher {
	in := client.InNamespace(namespace)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (kruntime.Object, error) {
			list := &apps.CloneSetList{}
			return list, s.sets.List(ctx, list, in, &client.ListOptions{Raw: &options})
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return s.sets.Watch(ctx, &apps.CloneSetList{}, in, &client.ListOptions{Raw: &options})
		},
	}
}

// bound gives a phase its deadline.
func (s *session) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("it took longer than %s", s.limit))
}

// cpu reads the CPU times of all processes.
func (s *session) cpu() (times, error) { return s.meter.read(process.Table{}) }

// size measures one number of Pods: first without a controller, then with a newly
// started Usher. The larger the share, the longer the API server is kept busy before
// each phase.
func (s *session) size(ctx context.Context, n int, share float64) (Size, error) {
	size := Size{Pods: n}
	var err error
	if s.meter, err = s.stage.meter(); err != nil {
		return size, err
	}
	if err := s.warmUp(ctx, share); err != nil {
		return size, err
	}
	if size.Ceilings, err = s.raw(ctx, n); err != nil {
		return size, err
	}
	if err := s.begin(ctx); err != nil {
		return size, err
	}
	for _, p := range phases(n) {
		if err := s.warmUp(ctx, share); err != nil {
			return size, err
		}
		done, err := s.phase(ctx, p, n)
		if err != nil {
			return size, fmt.Errorf("%d Pods, %s: %w", n, p.name, err)
		}
		if !p.aside {
			size.Phases = append(size.Phases, done)
		}
	}
	return size, s.end(ctx)
}

// begin starts Usher with an empty CloneSet.
func (s *session) begin(ctx context.Context) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if err := s.startUsher(s.fail, "--controllers", "cloneset"); err != nil {
		return err
	}
	var err error
	if s.meter, err = s.stage.meter(); err != nil {
		return err
	}
	set := cloneSet()
	if err := s.sets.Create(ctx, set); err != nil {
		return fmt.Errorf("create the CloneSet: %w", err)
	}
	if err := s.word.await(ctx, set.GetGeneration(), 0); err != nil {
		return err
	}
	_, _, err = s.audit.untilQuiet(ctx)
	return err
}

// end deletes the CloneSet and stops Usher.
func (s *session) end(ctx context.Context) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	err := s.sets.Delete(ctx, cloneSet())
	if err != nil {
		return fmt.Errorf("delete the CloneSet: %w", err)
	}
	if err := s.crowd.await(ctx, 0, ""); err != nil {
		return err
	}
	return s.stopUsher(ctx)
}

// phase makes one change and waits until it is done.
func (s *session) phase(ctx context.Context, p phase, n int) (Phase, error) {
	s.say("%s Pods: %s", group(n), p.name)
	ctx, cancel := s.bound(ctx)
	defer cancel()
	s.crowd.begin()
	answered := s.hooks.count.Load()
	before, err := s.cpu()
	if err != nil {
		return Phase{}, err
	}
	began := time.Now()
	generation, err := p.change.apply(ctx, s.sets)
	if err != nil {
		return Phase{}, err
	}
	if err := s.crowd.await(ctx, p.change.replicas, image(p.change.version)); err != nil {
		return Phase{}, err
	}
	pods := time.Since(began)
	if err := s.word.await(ctx, generation, p.change.replicas); err != nil {
		return Phase{}, err
	}
	status := time.Since(began)
	after, err := s.cpu()
	if err != nil {
		return Phase{}, err
	}
	done := Phase{
		Name: p.name, Kind: p.kind, Seconds: pods.Seconds(), StatusSeconds: status.Seconds(),
		PodsPerSecond: float64(n) / pods.Seconds(), CPU: after.since(before),
		HookAnswers: int(s.hooks.count.Load() - answered),
	}
	return done, s.account(ctx, &done, n)
}

// account adds what is known only afterwards.
func (s *session) account(ctx context.Context, done *Phase, n int) error {
	var err error
	if done.Usher, done.OtherWrites, err = s.audit.untilQuiet(ctx); err != nil {
		return err
	}
	done.WritesPerPod = float64(done.Usher.Total()) / float64(n)
	counted := s.crowd.end()
	done.OutOfService, done.Startup, done.LeastReady = distribute(counted.outs), distribute(counted.joins), counted.least
	peak, err := process.Table{}.PeakRSS(s.usher.PID())
	done.PeakMiB = float64(peak) / (1 << 20)
	return err
}
