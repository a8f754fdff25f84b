// SPDX-License-Identifier: Apache-2.0

// Package cloneset tests CloneSets on a real API server, with the controller in the
// test's own process and nodes that simulate containers.
package cloneset

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/node"
)

const (
	// patience bounds every wait of a story.
	patience = 60 * time.Second
	// manager is the field manager of a story's controller.
	manager = "usher"
)

// environment is what all stories share: a cluster with nodes, and its client.
type environment struct {
	config *rest.Config
	client client.WithWatch
	scheme *runtime.Scheme
}

var shared *environment

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// Stories wait for the API server more than they compute.
	if err := flag.Set("test.parallel", "6"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctrl.SetLogger(logr.Discard())
	cluster, stop, err := clustertest.StartForMain()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if shared, err = prepare(ctx, cluster.RESTConfig()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func prepare(ctx context.Context, config *rest.Config) (*environment, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), apps.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	_, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{
		Paths: []string{filepath.Join("..", "..", "..", "config", "crd")}, ErrorIfPathMissing: true,
	})
	if err != nil {
		return nil, fmt.Errorf("install CRDs: %w", err)
	}
	simulated, err := node.NewSimulatedRuntime(node.SimulatedOptions{
		UpdateDelay: 20 * time.Millisecond, DeleteDelay: 20 * time.Millisecond, MissingImages: []string{"example.test/missing:v1"},
		MostCPU: "4",
	})
	if err != nil {
		return nil, err
	}
	if _, err := node.Start(ctx, node.Options{RESTConfig: config, Nodes: 3, PodsPerNode: 1000, Runtime: simulated}); err != nil {
		return nil, fmt.Errorf("start nodes: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	return &environment{config: config, client: c, scheme: scheme}, err
}

// story is one test's namespace, and a controller for it. Its set is named web unless
// the story says otherwise.
type story struct {
	*testing.T
	*environment
	namespace, name string
	options         cloneset.Options
	// created is how many revisions the controller has asked for.
	created atomic.Int32
	// intercept sends the controller's requests; nil for the usual way.
	intercept func(request *http.Request, next http.RoundTripper) (*http.Response, error)
}

// roundTrip is a function as a RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// withoutController creates a namespace. The story runs beside others.
func withoutController(t *testing.T) *story {
	t.Helper()
	t.Parallel()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "story-"}}
	if err := shared.client.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	return &story{T: t, environment: shared, namespace: namespace.Name, name: "web"}
}

// begin creates a namespace and starts a controller that ends with the test.
func begin(t *testing.T) *story {
	t.Helper()
	s := withoutController(t)
	s.startController()
	return s
}

// running begins with a set of testdata/sets whose Pods are all available.
func running(t *testing.T, set string, patches ...string) *story {
	t.Helper()
	s := begin(t)
	s.create(set, patches...)
	s.settled(s.replicas())
	return s
}

// startController runs a controller for the story's namespace. The returned function
// stops it like a crash: it loses everything in memory.
func (s *story) startController() (stop func()) {
	s.Helper()
	skip := true // tests run several managers in one process
	config := rest.CopyConfig(s.config)
	config.UserAgent = manager // so that a story can tell who wrote a field
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/controllerrevisions") {
				s.created.Add(1)
			}
			if s.intercept != nil {
				return s.intercept(request, next)
			}
			return next.RoundTrip(request)
		})
	})
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: s.scheme, Metrics: server.Options{BindAddress: "0"}, Controller: ctrlconfig.Controller{SkipNameValidation: &skip},
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{s.namespace: {}},
			DefaultTransform:  cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}: cloneset.PodCache(), &corev1.PersistentVolumeClaim{}: cloneset.ClaimCache(),
			},
		},
	})
	s.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	s.must(cloneset.Setup(ctx, mgr, s.options))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := mgr.Start(ctx); err != nil {
			s.Errorf("controller: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	s.Cleanup(stop)
	return stop
}
