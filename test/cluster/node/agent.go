// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Options configures an agent. Client or RESTConfig, and Runtime, must be set.
type Options struct {
	// Client talks to the API server. If it is nil, it is created from RESTConfig,
	// without a client-side rate limit.
	Client     kubernetes.Interface
	RESTConfig *rest.Config
	// Runtime runs the containers. The agent closes it when it stops.
	Runtime Runtime

	// Nodes is the number of nodes; 0 means 2.
	Nodes int
	// A node's name is NamePrefix and a number from 1; empty means "node-".
	NamePrefix string
	// PodsPerNode is the Pod capacity of a node; 0 means 110.
	PodsPerNode int

	// BackoffBase is the first and BackoffMax the longest backoff of crash loops and
	// image pulls; 0 means 10 s and 5 min, as in a kubelet.
	BackoffBase, BackoffMax time.Duration
	// ReadyUntilStopped leaves the readiness of a terminating Pod to its probes, as a
	// kubelet does; otherwise such a Pod is reported not ready at once.
	ReadyUntilStopped bool
	// Workers is the number of Pods synced concurrently; 0 means 16.
	Workers int
	// Clock is the time; nil means the real one.
	Clock clock.WithTicker
	// Logger receives failures; the zero value discards them.
	Logger logr.Logger
}

// Agent acts as the kubelets of its nodes.
type Agent struct {
	kubelet
	client      kubernetes.Interface
	podsPerNode int
	log         logr.Logger
	queue       workqueue.TypedRateLimitingInterface[types.UID]
	names       []string // of the nodes, by index
	cancel      context.CancelFunc
	done        chan struct{} // closed once everything has ended
	closeErr    error         // valid once done is closed

	mu      sync.Mutex
	nodes   map[string]*nodeState
	entries map[types.UID]*entry
}

// entry is one of the agent's Pods, with its latest version from the API server.
type entry struct {
	pod    *pod
	latest atomic.Pointer[corev1.Pod]
	gone   atomic.Bool // the object is gone
}

// Start registers the nodes and serves their Pods until Stop is called or ctx ends.
// Both end all containers and close the runtime; if Start fails, that is left to the
// caller.
func Start(ctx context.Context, options Options) (*Agent, error) {
	a, err := newAgent(options)
	if err != nil {
		return nil, err
	}
	if err := a.registerNodes(ctx); err != nil {
		a.queue.ShutDown()
		return nil, err
	}
	ctx, a.cancel = context.WithCancel(ctx)
	a.base = ctx
	stopEvents := a.startEvents(ctx)
	informer, err := a.watchPods(ctx)
	if err != nil {
		a.cancel()
		stopEvents()
		a.queue.ShutDown()
		return nil, err
	}
	var running sync.WaitGroup
	ticker := a.clock.NewTicker(heartbeatPeriod)
	running.Go(func() { a.runHeartbeats(ctx, ticker) })
	workers := cmp.Or(options.Workers, 16)
	for range workers {
		running.Go(func() {
			for a.serveNext(ctx) {
			}
		})
	}
	go func() {
		<-ctx.Done()
		a.queue.ShutDown()
		running.Wait()
		informer.Shutdown()
		stopEvents()
		a.closeErr = a.runtime.Close(context.WithoutCancel(ctx))
		close(a.done)
	}()
	return a, nil
}

func newAgent(options Options) (*Agent, error) {
	if options.Runtime == nil {
		return nil, errors.New("node agent: Options.Runtime is nil: set NewProcessRuntime's or NewSimulatedRuntime's result")
	}
	client, err := newClient(options)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		kubelet: kubelet{
			runtime: options.Runtime,
			clock:   options.Clock,
			backoff: backoffLimits{
				base: cmp.Or(options.BackoffBase, 10*time.Second), max: cmp.Or(options.BackoffMax, 5*time.Minute),
			},
			readyUntilStopped: options.ReadyUntilStopped,
		},
		client:      client,
		podsPerNode: cmp.Or(options.PodsPerNode, 110),
		log:         options.Logger,
		done:        make(chan struct{}),
		nodes:       map[string]*nodeState{},
		entries:     map[types.UID]*entry{},
	}
	if a.clock == nil {
		a.clock = clock.RealClock{}
	}
	a.queue = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](10*time.Millisecond, 5*time.Second),
		workqueue.TypedRateLimitingQueueConfig[types.UID]{Clock: a.clock})
	a.enqueue = a.queue.Add
	a.silent = a.hasFailed
	for i := range cmp.Or(options.Nodes, 2) {
		name := cmp.Or(options.NamePrefix, "node-") + strconv.Itoa(i+1)
		a.names = append(a.names, name)
		a.nodes[name] = &nodeState{index: i}
	}
	return a, nil
}

func newClient(options Options) (kubernetes.Interface, error) {
	if options.Client != nil {
		return options.Client, nil
	}
	if options.RESTConfig == nil {
		return nil, errors.New("node agent: neither Options.Client nor Options.RESTConfig is set: set one of them")
	}
	config := rest.CopyConfig(options.RESTConfig)
	config.UserAgent = "usher-node"
	config.QPS = -1 // no client-side limit
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("node agent: client from Options.RESTConfig: %w", err)
	}
	return client, nil
}

// startEvents sends events to the API server if there are real containers to report on.
// It returns the function that stops it.
func (a *Agent) startEvents(ctx context.Context) func() {
	if !a.runtime.Traits().Real {
		return func() {}
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.client.CoreV1().Events("")})
	a.recorder = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "usher-node"})
	return broadcaster.Shutdown
}

// serveNext syncs the next Pod in the queue; false means that the queue has shut down.
func (a *Agent) serveNext(ctx context.Context) bool {
	uid, shutdown := a.queue.Get()
	if shutdown {
		return false
	}
	defer a.queue.Done(uid)
	a.mu.Lock()
	e := a.entries[uid]
	a.mu.Unlock()
	if e == nil || a.hasFailed(e.pod.node) {
		return true
	}
	next, err := a.sync(ctx, e)
	if !next.IsZero() {
		a.queue.AddAfter(uid, next.Sub(a.clock.Now()))
	}
	switch {
	case err == nil:
		a.queue.Forget(uid)
	case ctx.Err() == nil:
		a.log.Error(err, "Cannot serve the Pod", "pod", types.NamespacedName{
			Namespace: e.latest.Load().Namespace, Name: e.latest.Load().Name,
		})
		a.queue.AddRateLimited(uid)
	}
	return true
}

// sync advances a Pod one step and reports the result. It returns when to call it
// again, which is valid even with an error.
func (a *Agent) sync(ctx context.Context, e *entry) (time.Time, error) {
	// The queue never hands one key to two workers, so p is ours now.
	p, object, gone, now := e.pod, e.latest.Load(), e.gone.Load(), a.clock.Now()
	if !gone && resourceVersion(object) < p.version {
		return time.Time{}, nil // the cache lags behind our own write; its event is still to come
	}
	p.mu.Lock()
	next, err := p.step(object, gone, now) //nolint:contextcheck // a hook outlives the step that starts it, and has the agent's context
	status := computeStatus(object, &p.podState, now)
	down := p.down
	p.mu.Unlock()
	switch {
	case err != nil:
		return next, err
	case gone && down:
		a.drop(p)
		return time.Time{}, nil
	case gone || p.deleted:
		return next, nil
	case down:
		return next, a.finish(ctx, p, object, status)
	}
	return next, a.writeStatus(ctx, p, object, status)
}

// drop ends the record of a Pod that is gone.
func (a *Agent) drop(p *pod) {
	a.runtime.Release(p.uid)
	a.mu.Lock()
	delete(a.entries, p.uid)
	a.mu.Unlock()
}

// finish reports the end of a terminated Pod and then deletes its object, which a
// finalizer may keep.
func (a *Agent) finish(ctx context.Context, p *pod, object *corev1.Pod, status *corev1.PodStatus) error {
	if a.runtime.Traits().Real || len(object.Finalizers) > 0 {
		if err := a.writeStatus(ctx, p, object, status); err != nil {
			return err
		}
	}
	var grace int64
	err := a.client.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &grace,
		Preconditions:      metav1.NewUIDPreconditions(string(object.UID)),
	})
	// A conflict means that another Pod has the name by now.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete the Pod: %w", err)
	}
	p.deleted = true
	return nil
}

func (a *Agent) writeStatus(ctx context.Context, p *pod, object *corev1.Pod, status *corev1.PodStatus) error {
	if status == nil {
		return nil
	}
	patch, err := statusPatch(object, status)
	if err != nil || patch == nil {
		return err
	}
	written, err := a.client.CoreV1().Pods(object.Namespace).Patch(ctx, object.Name,
		types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || isReplaced(err) {
		return nil // an event will report it
	}
	if err != nil {
		return fmt.Errorf("write the Pod's status: %w", err)
	}
	p.version = resourceVersion(written)
	return nil
}

// isReplaced reports whether the API server refused a patch because another Pod has
// that name by now.
func isReplaced(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Field == "metadata.uid"
	})
}

// Nodes are the names of the agent's nodes.
func (a *Agent) Nodes() []string { return slices.Clone(a.names) }

// Stop ends all containers and the agent. It fails if a container did not end before
// ctx did.
func (a *Agent) Stop(ctx context.Context) error {
	a.cancel()
	select {
	case <-a.done:
		return a.closeErr
	case <-ctx.Done():
		return fmt.Errorf("stop the node agent: %w", context.Cause(ctx))
	}
}

// resourceVersion is the object's resource version; 0 if it has none that can be
// compared.
func resourceVersion(object *corev1.Pod) uint64 {
	version, err := strconv.ParseUint(object.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return version
}
