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
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

const (
	userAgent = "usher-node"
	// workers is the number of Pods synced concurrently.
	workers = 16
)

// Options configures an agent. RESTConfig and Runtime must be set.
type Options struct {
	// RESTConfig is how to reach the API server. The agent has no client-side rate limit.
	RESTConfig *rest.Config
	// Runtime runs the containers. The agent closes it when it stops.
	Runtime Runtime
	// Nodes is the number of nodes, node-1 and so on; 0 means 2.
	Nodes int
	// PodsPerNode is the Pod capacity of a node; 0 means 110.
	PodsPerNode int
	// Logger receives failures; the zero value discards them.
	Logger logr.Logger
}

// Agent acts as the kubelets of its nodes.
type Agent struct {
	kubelet
	client      kubernetes.Interface
	podsPerNode int
	queue       workqueue.TypedRateLimitingInterface[types.UID]
	nodes       map[string]int // indexes, by name
	cancel      context.CancelFunc
	done        chan struct{} // closed once everything has ended
	closeErr    error         // valid once done is closed

	mu   sync.Mutex
	pods map[types.UID]*pod
}

// Start registers the nodes and serves their Pods until Stop is called or ctx ends.
// Both end all containers and close the runtime; if Start fails, that is left to the
// caller.
func Start(ctx context.Context, o Options) (*Agent, error) {
	config := rest.CopyConfig(o.RESTConfig)
	config.UserAgent = userAgent
	config.QPS = -1 // no client-side limit
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("node agent: client from Options.RESTConfig: %w", err)
	}
	a := newAgent(client, o)
	if err := a.run(ctx); err != nil {
		a.queue.ShutDown()
		return nil, err
	}
	return a, nil
}

func newAgent(client kubernetes.Interface, o Options) *Agent {
	a := &Agent{
		kubelet: kubelet{
			runtime: o.Runtime, traits: o.Runtime.Traits(), clock: clock.RealClock{}, log: o.Logger,
			backoff: backoffLimits{base: 10 * time.Second, max: 5 * time.Minute},
		},
		client:      client,
		podsPerNode: cmp.Or(o.PodsPerNode, 110),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](10*time.Millisecond, 5*time.Second)),
		nodes: map[string]int{},
		done:  make(chan struct{}),
		pods:  map[types.UID]*pod{},
	}
	a.enqueue = a.queue.Add
	for i := range cmp.Or(o.Nodes, 2) {
		a.nodes["node-"+strconv.Itoa(i+1)] = i
	}
	return a
}

func (a *Agent) run(ctx context.Context) error {
	for name, index := range a.nodes {
		if err := a.registerNode(ctx, name, index); err != nil {
			return err
		}
	}
	ctx, a.cancel = context.WithCancel(ctx)
	a.base = ctx
	informer, err := a.watchPods(ctx)
	if err != nil {
		a.cancel()
		return err
	}
	var running sync.WaitGroup
	running.Go(func() { a.runHeartbeats(ctx) })
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
		a.closeErr = a.runtime.Close(context.WithoutCancel(ctx))
		close(a.done)
	}()
	return nil
}

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

// watchPods watches the Pods that are bound to a node.
func (a *Agent) watchPods(ctx context.Context) (informers.SharedInformerFactory, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(a.client, 0,
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		}),
		informers.WithTransform(func(object any) (any, error) {
			if pod, ok := object.(*corev1.Pod); ok {
				pod.ManagedFields = nil
			}
			return object, nil
		}))
	registration, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: a.observe,
		UpdateFunc: func(before, object any) {
			// An interrupted watch may miss that another Pod of the same name replaced
			// this one.
			if before.(*corev1.Pod).UID != object.(*corev1.Pod).UID {
				a.forget(before)
			}
			a.observe(object)
		},
		DeleteFunc: a.forget,
	})
	if err != nil {
		return nil, fmt.Errorf("watch Pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil, fmt.Errorf("watch Pods: %w", context.Cause(ctx))
	}
	return factory, nil
}

// observe records the latest version of a Pod on one of the nodes.
func (a *Agent) observe(object any) {
	observed := object.(*corev1.Pod)
	node, ours := a.nodes[observed.Spec.NodeName]
	if !ours {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[observed.UID]
	if p == nil {
		p = &pod{kubelet: &a.kubelet, uid: observed.UID, podState: podState{hostIP: hostIP(a.traits, node)}}
		a.pods[observed.UID] = p
	}
	p.latest.Store(observed)
	a.queue.Add(observed.UID)
}

// forget records that a Pod's object is gone.
func (a *Agent) forget(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.pods[object.(*corev1.Pod).UID]; p != nil {
		p.gone.Store(true)
		a.queue.Add(p.uid)
	}
}

// serveNext syncs the next Pod in the queue; false means that the queue has shut down.
func (a *Agent) serveNext(ctx context.Context) bool {
	uid, shutdown := a.queue.Get()
	if shutdown {
		return false
	}
	defer a.queue.Done(uid)
	a.mu.Lock()
	p := a.pods[uid]
	a.mu.Unlock()
	if p == nil {
		return true
	}
	next, err := a.sync(ctx, p)
	if !next.IsZero() {
		a.queue.AddAfter(uid, next.Sub(a.clock.Now()))
	}
	switch {
	case err == nil:
		a.queue.Forget(uid)
	case ctx.Err() == nil:
		a.log.Error(err, "Cannot serve the Pod", "pod", p.latest.Load().Namespace+"/"+p.latest.Load().Name)
		a.queue.AddRateLimited(uid)
	}
	return true
}

// sync advances a Pod one step and reports the result. It returns when to call it
// again, which is valid even with an error.
func (a *Agent) sync(ctx context.Context, p *pod) (time.Time, error) {
	// The queue never hands one key to two workers, so p is ours now.
	object, gone, now := p.latest.Load(), p.gone.Load(), a.clock.Now()
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
		a.runtime.Release(p.uid)
		a.mu.Lock()
		delete(a.pods, p.uid)
		a.mu.Unlock()
		return time.Time{}, nil
	case gone || p.deleted:
		return next, nil
	case down:
		return next, a.finish(ctx, p, object, status)
	}
	return next, a.writeStatus(ctx, p, object, status)
}

// finish reports the end of a terminated Pod and then deletes its object, which a
// finalizer may keep.
func (a *Agent) finish(ctx context.Context, p *pod, object *corev1.Pod, status *corev1.PodStatus) error {
	if a.traits.Real || len(object.Finalizers) > 0 {
		if err := a.writeStatus(ctx, p, object, status); err != nil {
			return err
		}
	}
	err := a.client.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(object.UID)),
	})
	// A conflict means that another Pod has the name by now.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete the Pod: %w", err)
	}
	p.deleted = true
	return nil
}

func (a *Agent) writeStatus(ctx context.Context, p *pod, object *corev1.Pod, status *corev1.PodStatus) error {
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

// resourceVersion is the object's resource version; 0 if it has none that can be
// compared.
func resourceVersion(object *corev1.Pod) uint64 {
	version, _ := strconv.ParseUint(object.ResourceVersion, 10, 64)
	return version
}
