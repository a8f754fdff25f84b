// SPDX-License-Identifier: Apache-2.0

// Package node is the node agent of the development cluster: it registers nodes, renews
// their leases and acts as the kubelet for every Pod bound to them.
//
// agent.go is a controller of Pods. There is one Pod state machine (pod.go, container.go,
// status.go) and two runtimes behind the Runtime interface. The process
// runtime runs every container as an operating system process with the Pod's own loopback
// address; the simulated runtime starts nothing and therefore handles thousands of Pods.
//
// One call of pod.step advances a Pod as far as possible now: it starts and stops
// containers, never waits, and returns when to call it again. Whatever takes time (a
// process, a probe) runs elsewhere and puts the Pod back in the queue. The result of the
// step is written to the Pod's status in one patch of the changed fields.
//
// The kubelet's own packages are not used: k8s.io/kubernetes cannot be imported without replacing all
// modules of its staging directory. kwok simulates, but runs no processes.
//
// # Differences from a kubelet
//
//   - The agent runs the Pods of CloneSets: it restarts containers always, and ignores
//     restartPolicy, init containers, sidecars and ephemeral containers.
//   - Images that are mounted are only pulled. Other volumes, Secrets, ConfigMaps,
//     service account tokens, security contexts and network policies are ignored,
//     and so are environment variables from other objects, $(NAME) in values and
//     arguments, working directories and termination messages. A process sees the
//     files and the network of the machine.
//   - Resource requests and limits are reported as actuated at once, but never
//     enforced. There is no eviction, no OOM kill, no activeDeadlineSeconds.
//   - kubectl logs, exec, attach and port-forward do not work: there is no
//     kubelet endpoint. Container output is in files, see ProcessOptions. There are no
//     events.
//   - Pod addresses of the process runtime are loopback addresses, reachable
//     from this machine only. The API server refuses them in EndpointSlices,
//     so a Service with a selector has no endpoints.
//   - Containers of one Pod that have to restart do so at the same time; a
//     kubelet stops one after the other. A kubelet also shows ErrImagePull and, after
//     an in-place change to a missing image, CrashLoopBackOff for a moment; the agent
//     shows only ImagePullBackOff.
//   - A terminating Pod is reported not ready at once. A kubelet leaves that
//     to the readiness probe.
//   - Of the probes, only a readiness probe by HTTP runs, without thresholds. Of the
//     hooks, only a preStop sleep does.
//   - An agent does not take over the Pods of a former one.
//   - The simulated runtime runs no probes. It writes the status of a Pod being deleted
//     only if a finalizer keeps the Pod.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
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
	// Nodes is the number of nodes, node-1 and so on; 0 means 2. First is how many there are of
	// other agents: this one's come after them.
	Nodes, First int
	// PodsPerNode is the Pod capacity of a node; 0 means 110.
	PodsPerNode int
	// Logger receives failures; the zero value is controller-runtime's.
	Logger logr.Logger
}

// Agent acts as the kubelets of its nodes.
type Agent struct {
	kubelet
	client      client.Client
	podsPerNode int
	nodes       map[string]int // indexes, by name
	cancel      context.CancelFunc
	done        chan struct{} // closed once everything has ended
	closeErr    error         // valid once done is closed
	pods        sync.Map      // *pod by types.NamespacedName
}

// Start registers the nodes and serves their Pods until Stop is called or ctx ends.
// Both end all containers and close the runtime; if Start fails, that is left to the
// caller.
func Start(ctx context.Context, o Options) (*Agent, error) {
	config := rest.CopyConfig(o.RESTConfig)
	config.UserAgent = userAgent
	config.QPS = -1 // no client-side limit
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Logger: o.Logger, Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{
			ByObject:                     map[client.Object]cache.ByObject{&corev1.Pod{}: {Field: fields.OneTermNotEqualSelector("spec.nodeName", "")}},
			DefaultTransform:             cache.TransformStripManagedFields(),
			DefaultUnsafeDisableDeepCopy: new(true), // it only reads them
		},
	})
	if err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	a := newAgent(mgr.GetClient(), o)
	if err := a.setup(ctx, mgr); err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	ctx, a.cancel = context.WithCancel(ctx)
	a.base = ctx
	go func() {
		defer close(a.done)
		a.closeErr = mgr.Start(ctx)
		a.closeErr = errors.Join(a.closeErr, a.runtime.Close(context.WithoutCancel(ctx)))
	}()
	return a, nil
}

func newAgent(c client.Client, o Options) *Agent {
	a := &Agent{
		kubelet: kubelet{runtime: o.Runtime, traits: o.Runtime.Traits(), clock: clock.RealClock{}, log: o.Logger},
		client:  c, podsPerNode: cmp.Or(o.PodsPerNode, 110), nodes: map[string]int{},
		done: make(chan struct{}),
	}
	for i := range cmp.Or(o.Nodes, 2) {
		a.nodes["node-"+strconv.Itoa(o.First+i+1)] = o.First + i
	}
	return a
}

// setup registers the nodes, and adds their controllers to the manager.
func (a *Agent) setup(ctx context.Context, mgr manager.Manager) error {
	for name, index := range a.nodes {
		if err := a.registerNode(ctx, name, index); err != nil {
			return err
		}
	}
	if err := mgr.Add(manager.RunnableFunc(a.runHeartbeats)); err != nil {
		return err
	}
	// The end of a container puts its Pod into the controller's queue.
	queue := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		a.enqueue = func(pod types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: pod}) }
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).Named("node").For(&corev1.Pod{}).WatchesRawSource(queue).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers, SkipNameValidation: new(true), // tests run several agents in one process
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](10*time.Millisecond, 5*time.Second),
		}).Complete(a)
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

// Reconcile advances one Pod as far as possible now.
func (a *Agent) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	object := &corev1.Pod{}
	err := a.client.Get(ctx, request.NamespacedName, object)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	known, _ := a.pods.Load(request.NamespacedName)
	p, _ := known.(*pod)
	if p != nil && (err != nil || object.UID != p.uid) {
		if !p.killAll(a.clock.Now()) {
			return reconcile.Result{}, nil // the end of its containers puts it into the queue again
		}
		a.runtime.Release(p.uid)
		a.pods.Delete(request.NamespacedName)
		p = nil
	}
	node, ours := a.nodes[object.Spec.NodeName]
	if err != nil || !ours {
		return reconcile.Result{}, nil
	}
	if p == nil {
		p = &pod{kubelet: &a.kubelet, uid: object.UID, podState: podState{hostIP: hostIP(a.traits, node)}}
		a.pods.Store(request.NamespacedName, p)
	}
	next, err := a.sync(ctx, p, object)
	if next.IsZero() || err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: max(next.Sub(a.clock.Now()), 1)}, nil
}

// sync advances a Pod one step and reports the result. It returns when to call it again.
func (a *Agent) sync(ctx context.Context, p *pod, object *corev1.Pod) (time.Time, error) {
	older, err := resourceversion.CompareResourceVersion(object.ResourceVersion, cmp.Or(p.version, object.ResourceVersion))
	if p.deleted || older < 0 {
		return time.Time{}, err // the cache lags behind our own write; its event is still to come
	}
	now := a.clock.Now()
	next, err := p.step(object, now) //nolint:contextcheck // a probe outlives the step that starts it, and has the agent's context
	if err != nil {
		return next, err
	}
	status := computeStatus(object, &p.podState, now)
	if p.down {
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
	err := a.client.Delete(ctx, podKey(object), client.GracePeriodSeconds(0), client.Preconditions{UID: &object.UID})
	if client.IgnoreNotFound(err) != nil {
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
	written := podKey(object)
	err = a.client.Status().Patch(ctx, written, client.RawPatch(types.StrategicMergePatchType, patch))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the Pod's status: %w", err)
	}
	p.version = written.ResourceVersion
	return nil
}
