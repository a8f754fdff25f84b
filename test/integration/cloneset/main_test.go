// SPDX-License-Identifier: Apache-2.0

// Package cloneset tests CloneSets on a real API server, with the controller in the
// test's own process and nodes that simulate containers.
package cloneset

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	apps "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/node"
)

// patience bounds every wait of a story.
const patience = 60 * time.Second

// world is what all stories share: a cluster with nodes, and its client.
type world struct {
	config *rest.Config
	client client.WithWatch
	scheme *runtime.Scheme
}

var shared *world

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctrl.SetLogger(logr.Discard())
	cluster, stop, err := clustertest.StartForMain()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if shared, err = newWorld(ctx, cluster.RESTConfig()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func newWorld(ctx context.Context, config *rest.Config) (*world, error) {
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
	if _, err := node.Start(ctx, node.Options{RESTConfig: config, Nodes: 3, Runtime: simulated}); err != nil {
		return nil, fmt.Errorf("start nodes: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	return &world{config: config, client: c, scheme: scheme}, err
}

// story is one test's namespace, and a controller for it.
type story struct {
	*testing.T
	*world
	namespace string
	// name is the set's name.
	name    string
	options cloneset.Options
	// wrap intercepts the controller's requests; nil for none.
	wrap func(http.RoundTripper) http.RoundTripper
}

// begin creates a namespace and starts a controller that ends with the test.
func begin(t *testing.T) *story {
	t.Helper()
	s := without(t)
	s.startController()
	return s
}

// without creates a namespace without a controller.
func without(t *testing.T) *story {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "story-"}}
	if err := shared.client.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	return &story{T: t, world: shared, namespace: namespace.Name, name: "web"}
}

// startController runs a controller for the story's namespace. The returned function
// stops it like a crash: it loses everything in memory.
func (s *story) startController() (stop func()) {
	s.Helper()
	skip := true // tests run several managers in one process
	config := rest.CopyConfig(s.config)
	config.UserAgent = manager // so that a story can tell who wrote a field
	config.WrapTransport = s.wrap
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: s.scheme, Metrics: server.Options{BindAddress: "0"}, Cache: cacheOf(s.namespace),
		Controller: ctrlconfig.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := cloneset.Setup(ctx, mgr, s.options); err != nil {
		s.Fatal(err)
	}
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
