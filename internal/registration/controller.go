// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/announce"
	"github.com/usher-dev/usher/internal/registration/call"
	"github.com/usher-dev/usher/internal/registration/idle"
	"github.com/usher-dev/usher/internal/registration/origin"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/podhttp"
	"github.com/usher-dev/usher/internal/registration/registries"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/awscloudmap"
	"github.com/usher-dev/usher/internal/registration/registry/awstargetgroup"
	"github.com/usher-dev/usher/internal/registration/registry/gcpneg"
	"github.com/usher-dev/usher/internal/registration/registry/kinds"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/internal/store"
)

// +kubebuilder:rbac:groups=usher.dev,resources=registrations,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=usher.dev,resources=registries,verbs=get;list;watch;patch;create
// +kubebuilder:rbac:groups=usher.dev,resources=registrations/status;registries/status,verbs=patch
// +kubebuilder:rbac:groups=apps.kruise.io,resources=clonesets,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=nodes;replicationcontrollers,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=replicasets;statefulsets;daemonsets;controllerrevisions,verbs=get;list;watch
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// batchDelay is how long a namespace's events are gathered before a pass, so that one
	// list and one batch serve all Pods that change together.
	batchDelay = 50 * time.Millisecond
	// retryMin and retryMax bound the back-off of a pass that failed.
	retryMin = 200 * time.Millisecond
	retryMax = 30 * time.Second
	// clusterNamespace is the namespace whose UID names the cluster.
	clusterNamespace = "kube-system"
	// passes and probes are how many namespaces, and Registries, are reconciled at a time. Most of
	// them wait for a registry: they are so many that a slow one keeps nobody from another.
	passes = 1000
	probes = 100
	// memoryPart is which part of its memory Usher holds of registries' answers at most.
	// defaultAnswers is what it holds where the memory has no limit, minAnswers where it has
	// next to none, in bytes.
	memoryPart     = 8
	defaultAnswers = 64 << 20
	minAnswers     = 4 << 20
	// defaultRegistryWorkers is twice maxCalls, so that no namespace alone has a registry to
	// itself.
	defaultRegistryWorkers = 32
)

// Options tune the operator.
type Options struct {
	// Workers bounds the requests about Pods that one pass has in flight. Default: 32.
	Workers int
	// RegistryWorkers bounds the calls to each registry in flight. Default: 32.
	RegistryWorkers int
	// HookKeys are labels and finalizers of users' choice that Usher may write. Default: all.
	HookKeys plan.Keys
	// Finish lets Usher delete Pods that have drained, if the reason for their deletion still holds.
	// Default: it does not.
	Finish bool
	// LoopbackPods lets Usher ask Pods that have a loopback address, as they have in a development cluster whose Pods
	// are processes of one machine. Default: it does not, as such an address leads to Usher's own Pod.
	LoopbackPods bool
	// StayOnNodes keeps Pods in their registries when their node says that it goes within a short time. Default: they
	// leave.
	StayOnNodes bool
	// Evictions means that the API server serves Evictions of lifecycle.k8s.io, and lets Usher read and answer
	// them: Usher is the responder of Pods that name it. Default: it is not.
	Evictions bool
	// ClusterID names the cluster in registries' entries. Default: the UID of the namespace kube-system.
	ClusterID string
	// Namespace is Usher's own, where it keeps by which API servers it knows this cluster from a copy of it. Default: none,
	// and copies are not noticed.
	Namespace string
	// Look asks an API server who it is. Default: the one of the manager's configuration.
	Look origin.Look
	// Guarded means that a guard runs, here or elsewhere: Usher tells of Pods that are deleted without it.
	// Default: it does not.
	Guarded bool
	// XDS is what this process serves over xDS. Default: nothing.
	XDS *xds.Store
	// Connect makes connectors. Default: those of every kind.
	Connect registries.Connect
	// Asker asks Pods whether anything is under way. Default: a Room, which asks them over HTTP.
	Asker Asker
	// DialPods connects to Pods that are asked. Default: the network.
	DialPods podhttp.Dial
	// Applications asks the applications of Pods to leave their registries. Default: over HTTP.
	Applications Applications
	// DialApplications connects to these Pods. Default: the network.
	DialApplications podhttp.Dial
	// Clock tells the time. Default: the machine's clock.
	Clock clock.PassiveClock
	// Registerer registers the metrics. Default: controller-runtime's.
	Registerer prometheus.Registerer
	// Process names the clock of this process in drain records. Default: eight random characters.
	Process string
}

// Asker asks Pods whether anything is under way there. It does so between passes, and has a pass made when an answer
// matters.
type Asker interface {
	// Want has these Pods of a namespace asked from now on, and no others.
	Want(namespace string, asks []plan.Ask)
	// Answers are the last answers of a namespace's Pods.
	Answers(namespace string) map[plan.AskKey]plan.Answer
}

// Applications asks the applications of Pods to leave their registries, and to come back.
type Applications interface {
	// All makes the calls of these changes, by the IDs of their entries. Its errors are ChangeErrors.
	All(ctx context.Context, changes []registry.Change, calls map[string]plan.Call) error
}

// Reconciler reconciles the Registrations of a namespace, and Registries. Create one with
// New. A new one is what a new process has: it remembers nothing, and reads from the API
// server and the registries what earlier ones have left.
type Reconciler struct {
	client client.Client
	reader client.Reader
	// owners reads owners of Pods, and nodes: a cache of what plans read of them.
	owners client.Reader
	// urgent selects nodes that go within a short time, of which others may be listed too: an index, if owners has it.
	urgent []client.ListOption
	// evictions are Kubernetes' own; nil if the API server does not serve them.
	evictions client.Reader
	listPods  lister[*corev1.Pod]
	// listRegistrations is for passes, and for events: none costs more the more Registrations
	// other namespaces have.
	listRegistrations lister[*usherv1alpha1.Registration]
	options           Options
	clock             clock.PassiveClock
	pool              *registries.Pool
	// origin tells this cluster from a copy of it; nil if nobody does.
	origin    *origin.Keeper
	prober    *registries.Prober
	answers   *registry.Answers
	written   written
	metrics   *metrics
	announcer *announcer
	// probes are Registries that passes want probed; back are those that answered a probe
	// again; answered are namespaces whose Pods have answered.
	probes, back, answered chan event.GenericEvent

	// gathered is until when events of a namespace are gathered for its next pass.
	gathering sync.Mutex
	gathered  map[string]time.Time

	// states has the *namespaceState of each namespace.
	states sync.Map

	// mu guards cluster, which names the cluster once it is known.
	mu      sync.Mutex
	cluster string
}

// written has the API server's answers to our last writes, by namespace: of each kind, those of the passes over that
// namespace.
type written struct {
	pods          *store.Store[string, *corev1.Pod]
	registrations *store.Store[string, *usherv1alpha1.Registration]
	registries    *store.Store[string, *usherv1alpha1.Registry]
}

func newWritten() written {
	return written{
		pods: store.New[string, *corev1.Pod](nil), registrations: store.New[string, *usherv1alpha1.Registration](nil),
		registries: store.New[string, *usherv1alpha1.Registry](nil),
	}
}

// empty reports whether the caches have caught up with all answers of a namespace.
func (w written) empty(namespace string) bool {
	return w.pods.Empty(namespace) && w.registrations.Empty(namespace) && w.registries.Empty(namespace)
}

// New returns a Reconciler. It reads from and writes to c, which may be a cache; reader
// must not be one.
func New(c client.Client, reader client.Reader, recorder events.EventRecorder, options Options) (*Reconciler, error) {
	options.Clock = cmp.Or[clock.PassiveClock](options.Clock, clock.RealClock{})
	options.Registerer = cmp.Or[prometheus.Registerer](options.Registerer, ctrlmetrics.Registry)
	options.Workers = cmp.Or(options.Workers, defaultWorkers)
	options.RegistryWorkers = cmp.Or(options.RegistryWorkers, defaultRegistryWorkers)
	options.Process = cmp.Or(options.Process, rand.Text()[:8])
	if options.Connect == nil {
		cluster := kinds.Cluster{
			Reader: reader, Writer: c, AWS: awstargetgroup.NewClients(), CloudMap: awscloudmap.NewClients(), GCP: gcpneg.NewClients(), XDS: options.XDS,
		}
		options.Connect = kinds.Connect(cluster)
	}
	m, err := newMetrics(options.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register the metrics of the hook operator: %w", err)
	}
	r := &Reconciler{
		client: c, reader: reader, owners: c, options: options, clock: options.Clock,
		pool:    registries.New(reader, options.Connect, options.Clock, options.RegistryWorkers),
		answers: registry.NewAnswers(answersOf(debug.SetMemoryLimit(-1))), metrics: m, announcer: &announcer{recorder, cache.NewExpiring()},
		probes: make(chan event.GenericEvent, probeBacklog), back: make(chan event.GenericEvent, probeBacklog),
		answered: make(chan event.GenericEvent, answerBacklog),
		written:  newWritten(), gathered: map[string]time.Time{},
	}
	if r.options.Evictions {
		r.evictions = c
	}
	if r.options.Asker == nil {
		r.options.Asker = idle.NewRoom(r.clock, r.options.DialPods, r.wake)
	}
	if r.options.Applications == nil {
		r.options.Applications = call.New(options.DialApplications)
	}
	r.listPods, r.listRegistrations = r.podsOf, r.registrationsOf
	r.prober = r.newProber()
	if options.Namespace != "" && options.Look != nil {
		r.keepOrigin(origin.NewKeeper(reader, c, options.Namespace, r.keepClusterID, options.Look, r.clock))
		if err := r.metrics.showCopies(options.Registerer, r.origin.Copied); err != nil {
			return nil, fmt.Errorf("register the metrics of the hook operator: %w", err)
		}
	}
	return r, nil
}

// keepOrigin has no registry called that other clusters may use, as long as this one may be a copy.
func (r *Reconciler) keepOrigin(by *origin.Keeper) {
	r.origin = by
	r.pool.Restrict(by.Check)
}

// answersOf is how much of registries' answers a process may hold that has so much memory, in
// bytes: entries that are decoded from an answer take several times as much. By default there is
// no limit.
func answersOf(memory int64) int64 {
	if memory == math.MaxInt64 {
		return defaultAnswers
	}
	return max(memory/memoryPart, minAnswers)
}

// Setup adds the controllers of Registrations and Registries to the manager, whose
// scheme has to know both of Usher's groups.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	recorder, err := announce.Recorder(mgr, "usher")
	if err != nil {
		return err
	}
	if options, err = options.withLook(mgr); err != nil {
		return err
	}
	r, err := New(mgr.GetClient(), mgr.GetAPIReader(), recorder, options)
	if err != nil {
		return err
	}
	if err := r.addServers(mgr); err != nil {
		return err
	}
	if r.listPods, err = byIndex(ctx, mgr.GetCache(), r.listPods); err != nil {
		return err
	}
	if r.listRegistrations, err = byIndex(ctx, mgr.GetCache(), r.listRegistrations); err != nil {
		return err
	}
	if err := r.watchNamespaces(ctx, mgr); err != nil {
		return fmt.Errorf("set up the controller of Registrations: %w", err)
	}
	if err := r.watchRegistries(mgr); err != nil {
		return fmt.Errorf("set up the controller of Registries: %w", err)
	}
	return nil
}

// withLook are the options with what asks the API server who it is, if that is asked for.
func (o Options) withLook(mgr ctrl.Manager) (Options, error) {
	if o.Namespace == "" || o.Look != nil {
		return o, nil
	}
	var err error
	o.Look, err = origin.NewLook(mgr.GetConfig())
	return o, err
}

// addServers adds what runs between passes, and closes what passes have opened.
func (r *Reconciler) addServers(mgr ctrl.Manager) error {
	closer := manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		r.pool.Close()
		return nil
	})
	if err := mgr.Add(closer); err != nil {
		return fmt.Errorf("close registries with the manager: %w", err)
	}
	if r.origin != nil {
		if err := mgr.Add(r.origin); err != nil {
			return fmt.Errorf("keep by which API servers this cluster is known: %w", err)
		}
	}
	if room, ok := r.options.Asker.(manager.Runnable); ok {
		if err := mgr.Add(room); err != nil {
			return fmt.Errorf("ask Pods whether they are idle: %w", err)
		}
	}
	return nil
}

func controllerOptions(concurrent int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: concurrent,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](retryMin, retryMax),
		// Controller names are unique in a process, but tests start several managers in one.
		SkipNameValidation: new(true),
		UsePriorityQueue:   new(false), // Nothing here has a priority.
	}
}

// keepClusterID returns the name of the cluster: the UID of kube-system, which lives as long as the cluster, unless the
// options have one. It reads the UID once.
func (r *Reconciler) keepClusterID(ctx context.Context) (string, error) {
	if r.options.ClusterID != "" {
		return r.options.ClusterID, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cluster != "" {
		return r.cluster, nil
	}
	namespace := metadataOf(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := r.reader.Get(ctx, types.NamespacedName{Name: clusterNamespace}, namespace); err != nil {
		return "", fmt.Errorf("read namespace %s, whose UID names the cluster: %w", clusterNamespace, err)
	}
	r.cluster = string(namespace.UID)
	return r.cluster, nil
}
