// SPDX-License-Identifier: Apache-2.0

// Package guard_test deletes, evicts and scales Pods on a real API server with the guard's
// webhook as the chart installs it, real controllers, and simulated nodes. A witness checks
// that no Pod is deleted while a registry lists it, or before its callers can know.
package guard_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/cloneset"
	"github.com/usher-dev/usher/internal/guard"
	"github.com/usher-dev/usher/internal/registration"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/node"
)

var (
	// plane is the control plane of all stories, api a client of it that repeats requests
	// as every client of client-go does.
	plane *cluster.Cluster
	api   client.WithWatch
	// callers is the registry, seen the whole time.
	callers = newWitness()
)

// service names the guard's Service, Secret and configuration.
var service = types.NamespacedName{Namespace: "usher-system", Name: "usher-guard"}

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	c, stop, err := clustertest.StartForMain()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	plane = c
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := setUp(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func setUp(ctx context.Context) error {
	if _, err := envtest.InstallCRDs(plane.RESTConfig(), envtest.CRDInstallOptions{
		Paths: []string{"../../../config/crd"}, ErrorIfPathMissing: true,
	}); err != nil {
		return err
	}
	simulated, err := node.NewSimulatedRuntime(node.SimulatedOptions{DeleteDelay: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	if _, err := node.Start(ctx, node.Options{RESTConfig: plane.RESTConfig(), Nodes: 2, Runtime: simulated}); err != nil {
		return err
	}
	if os.Getenv("USHER_TEST_LOG") != "" {
		ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	} else {
		ctrl.SetLogger(logr.Discard())
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), appsv1alpha1.AddToScheme(scheme), usherv1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	// Somebody other than Usher: the guard lets Usher's own user delete a CloneSet's Pods.
	config := plane.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "somebody", Groups: []string{"system:masters"}}
	if api, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	if err := install(ctx, port); err != nil {
		return err
	}
	if err := startUsher(ctx, scheme, port); err != nil {
		return err
	}
	return errors.Join(callers.follow(ctx, api), listed.follow(ctx, api))
}

// freePort finds a port for the webhook.
func freePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// install creates what the chart makes for the guard. API servers call it by its address:
// there are no Services here.
func install(ctx context.Context, port int) error {
	manifests, err := os.ReadFile("../../../tools/chart/testdata/golden/guard.yaml")
	if err != nil {
		return err
	}
	var configuration *admissionregistrationv1.ValidatingWebhookConfiguration
	for _, document := range strings.Split(string(manifests), "\n---\n") {
		if strings.Contains(document, "\nkind: ValidatingWebhookConfiguration\n") {
			if err := yaml.UnmarshalStrict([]byte(document), &configuration); err != nil {
				return err
			}
		}
	}
	if configuration == nil {
		return errors.New("the chart has no ValidatingWebhookConfiguration")
	}
	url := fmt.Sprintf("https://127.0.0.1:%d%s", port, guard.Path)
	for i := range configuration.Webhooks {
		configuration.Webhooks[i].ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: &url}
	}
	registry := &usherv1alpha1.Registry{ObjectMeta: metav1.ObjectMeta{Name: "memory"}}
	registry.Spec.Etcd = &usherv1alpha1.EtcdRegistry{Endpoints: []string{"http://127.0.0.1:1"}}
	if err := installPolicy(ctx, string(manifests)); err != nil {
		return err
	}
	return errors.Join(
		api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: service.Namespace}}),
		api.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}}),
		api.Create(ctx, configuration), api.Create(ctx, registry))
}

// startUsher runs both halves in a leader that knows nothing of the guard, and the guard in
// a replica that does not lead. It waits until API servers can call that.
func startUsher(ctx context.Context, scheme *runtime.Scheme, port int) error {
	leader, err := newManager(scheme)
	if err != nil {
		return err
	}
	if err := errors.Join(
		cloneset.Setup(ctx, leader, cloneset.Options{Registerer: prometheus.NewRegistry()}),
		registration.Setup(leader, registration.Options{Registerer: prometheus.NewRegistry(), Connect: callers.connect}),
	); err != nil {
		return err
	}
	run(ctx, leader)
	<-leader.Elected()
	other, err := newManager(scheme)
	if err != nil {
		return err
	}
	if err := guard.Setup(ctx, other, guard.Options{Service: service, Host: "127.0.0.1", Port: port}); err != nil {
		return err
	}
	run(ctx, other)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return wait.PollUntilContextTimeout(ctx, poll, time.Minute, true, func(ctx context.Context) (bool, error) {
		conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", address)
		if err != nil {
			return false, nil // It has no certificate yet.
		}
		return true, conn.Close()
	})
}

func newManager(scheme *runtime.Scheme) (manager.Manager, error) {
	return ctrl.NewManager(plane.RESTConfig(), ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "usher", LeaderElectionNamespace: service.Namespace,
	})
}

func run(ctx context.Context, mgr manager.Manager) {
	go func() {
		if err := mgr.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "Usher ended:", err)
		}
	}()
}

var _ registry.Connector = &watched{}
