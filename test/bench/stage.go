// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
)

const (
	// usherUser is Usher's user, with only the rights of config/rbac.
	usherUser = "usher"
	// podsPerNode is how many Pods the scheduler assigns to a node at most, and
	// minNodes is the lowest number of nodes.
	podsPerNode = 250
	minNodes    = 10
	// containerDelay is how long simulated containers take to start, to restart
	// and to end.
	containerDelay = 50 * time.Millisecond

	usherStopGrace = 5 * time.Second
	closeTime      = 30 * time.Second
	setupTime      = 30 * time.Second
	pollEvery      = 100 * time.Millisecond
)

// stage is everything that a measurement runs on.
type stage struct {
	dir     string // all files that it writes
	root    string // the checkout
	nodes   int
	cluster *cluster.Cluster
	agent   *node.Agent
	// sets writes and watches CloneSets; pods uses protobuf.
	sets       client.WithWatch
	pods       kubernetes.Interface
	kubeconfig string // Usher's
	spawner    *process.Spawner
	usher      *process.Process // nil when it does not run
}

// nodesFor is the number of nodes for that many Pods plus, in an update that recreates
// them, those that are still terminating.
func nodesFor(pods int) int {
	return max(minNodes, int(math.Ceil(1.5*float64(pods)/podsPerNode)))
}

// openStage builds and starts everything except Usher itself. On an error, nothing is
// left running.
func openStage(ctx context.Context, pods int, getenv func(string) string, tell progress.Sink) (*stage, error) {
	root, err := checkout.Find(getenv)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "usher-measure-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the measurement: %w", err)
	}
	s := &stage{dir: dir, root: root, nodes: nodesFor(pods), spawner: process.NewSpawner()}
	for _, step := range []func(context.Context, progress.Sink) error{s.compile, s.startCluster, s.startNodes, s.install} {
		if err := step(ctx, tell); err != nil {
			return nil, errors.Join(err, s.close(ctx), s.cleanUp())
		}
	}
	return s, nil
}

func (s *stage) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

func (s *stage) compile(ctx context.Context, tell progress.Sink) error {
	usher := checkout.Program{Name: "build usher", Module: s.root, Pkg: "./cmd/usher", Out: s.path("bin", "usher")}
	return usher.Compile(ctx, tell)
}

func (s *stage) auditLog() string { return s.path("audit.log") }

func (s *stage) startCluster(ctx context.Context, tell progress.Sink) error {
	var err error
	s.cluster, err = cluster.Start(ctx, cluster.Options{Dir: s.path("cluster"), AuditLog: s.auditLog(), Tell: tell})
	return err
}

func (s *stage) startNodes(ctx context.Context, tell progress.Sink) error {
	simulated, err := node.NewSimulatedRuntime(node.SimulatedOptions{
		ReadyDelay: containerDelay, UpdateDelay: containerDelay, DeleteDelay: containerDelay,
	})
	if err != nil {
		return err
	}
	// The nodes live until Stop, not only while the stage is being opened.
	s.agent, err = node.Start(context.WithoutCancel(ctx), node.Options{
		RESTConfig: s.cluster.RESTConfig(), Runtime: simulated, Nodes: s.nodes, PodsPerNode: podsPerNode,
	})
	if err != nil {
		return errors.Join(err, simulated.Close(ctx))
	}
	tell.Tell(progress.Event{Task: "nodes", State: progress.Done, Detail: fmt.Sprintf("%d simulated ones ready", s.nodes)})
	return nil
}

// install creates the API, the rights, the clients and the namespace.
func (s *stage) install(ctx context.Context, tell progress.Sink) error {
	if err := s.makeClients(); err != nil {
		return err
	}
	if err := checkout.Install(ctx, s.sets, s.root, usherUser); err != nil {
		return err
	}
	if err := s.openNamespace(ctx); err != nil {
		return err
	}
	var err error
	if s.kubeconfig, err = s.cluster.UserKubeconfig(usherUser); err != nil {
		return err
	}
	tell.Tell(progress.Event{Task: "Usher's API", State: progress.Done, Detail: "installed"})
	return nil
}

func (s *stage) makeClients() error {
	all := kruntime.NewScheme()
	err := errors.Join(scheme.AddToScheme(all), apps.AddToScheme(all), usherv1alpha1.AddToScheme(all))
	if err != nil {
		return fmt.Errorf("register API types: %w", err)
	}
	if s.sets, err = client.NewWithWatch(s.cluster.RESTConfig(), client.Options{Scheme: all}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	config := rest.CopyConfig(s.cluster.RESTConfig())
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if s.pods, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return nil
}

func (s *stage) openNamespace(ctx context.Context) error {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := s.pods.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %s: %w", namespace, err)
	}
	err := wait.PollUntilContextTimeout(ctx, pollEvery, setupTime, true, func(ctx context.Context) (bool, error) {
		_, err := s.pods.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("wait for the service account of namespace %s: %w", namespace, err)
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// startUsher starts Usher as shipped; failed is called if it ends unexpectedly.
func (s *stage) startUsher(failed func(error), args ...string) error {
	usher, err := s.spawner.Start(process.Spec{
		Name: "usher", Path: s.path("bin", "usher"), Log: s.path("logs", "usher.log"),
		Args: append([]string{"--kubeconfig", s.kubeconfig}, args...),
	})
	if err != nil {
		return err
	}
	s.usher = usher
	go func() {
		<-usher.Done()
		if !usher.Asked() {
			failed(usher.ExitError())
		}
	}()
	return nil
}

// guard ends a measurement when the control plane ends unexpectedly.
func (s *stage) guard(ctx context.Context, failed func(error)) {
	select {
	case <-ctx.Done():
	case <-s.cluster.Done():
		failed(fmt.Errorf("the control plane ended: %w", s.cluster.Err()))
	}
}

func (s *stage) stopUsher(ctx context.Context) error {
	if s.usher == nil {
		return nil
	}
	err := s.usher.Stop(ctx, usherStopGrace)
	s.usher = nil
	return err
}

// meter lists the processes whose CPU time is reported.
func (s *stage) meter() (meter, error) {
	m := meter{os.Getpid(): roleHarness}
	for name, pid := range s.cluster.PIDs() {
		switch name {
		case build.Etcd:
			m[pid] = roleEtcd
		case build.APIServer:
			m[pid] = roleAPIServer
		default:
			m[pid] = roleOthers
		}
	}
	if s.usher != nil {
		m[s.usher.PID()] = roleUsher
	}
	return m, nil
}

func (s *stage) machine() Machine {
	return Machine{CPUs: runtime.NumCPU(), Kubernetes: s.cluster.Version(), Go: runtime.Version(), Nodes: s.nodes}
}

// close ends everything, the youngest first. It takes the time it needs, even if ctx
// has ended.
func (s *stage) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	errs := []error{s.stopUsher(ctx)}
	if s.agent != nil {
		errs = append(errs, s.agent.Stop(ctx))
	}
	if s.cluster != nil {
		errs = append(errs, s.cluster.Stop(ctx))
	}
	s.spawner.Close()
	return errors.Join(errs...)
}

// cleanUp removes the files.
func (s *stage) cleanUp() error { return os.RemoveAll(s.dir) }
