// SPDX-License-Identifier: Apache-2.0

// Package scene is what the stories on a real API server share: a control plane with Usher's
// API and simulated nodes, a namespace for each story, changes in YAML, and waits that say
// what is missing.
package scene

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/node"
)

// Root is the checkout's root, from a package of stories.
const Root = "../../.."

// Plane is a control plane and a client of it, its administrator's unless somebody changes it.
type Plane struct {
	*cluster.Cluster
	client.WithWatch

	// halves starts both halves of Usher in a leader; crash ends the last one.
	halves func() (crash context.CancelFunc, err error)
	crash  context.CancelFunc
}

// Main starts a control plane for all stories of a package, with further arguments of its components,
// calls setUp, and runs the stories.
// With USHER_TEST_LOG set, controllers log to stderr.
func Main(m *testing.M, extra cluster.ExtraArgs, setUp func(ctx context.Context, p *Plane) error) {
	logger := logr.Discard()
	if os.Getenv("USHER_TEST_LOG") != "" {
		logger = zap.New(zap.WriteTo(os.Stderr))
	}
	ctrl.SetLogger(logger) // only the first call counts
	os.Exit(play(m, extra, setUp))
}

func play(m *testing.M, extra cluster.ExtraArgs, setUp func(ctx context.Context, p *Plane) error) int {
	c, stop, err := clustertest.StartForMain(extra)
	if err == nil {
		defer stop()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var p *Plane
		if p, err = New(c); err == nil {
			err = setUp(ctx, p)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// New installs Usher's API on a control plane.
func New(c *cluster.Cluster) (*Plane, error) {
	_, err := envtest.InstallCRDs(c.RESTConfig(), envtest.CRDInstallOptions{Paths: []string{Root + "/config/crd"}, ErrorIfPathMissing: true})
	if err != nil {
		return nil, fmt.Errorf("install the CRDs: %w", err)
	}
	kube, err := checkout.NewClient(c.RESTConfig())
	return &Plane{Cluster: c, WithWatch: kube}, err
}

// StartNodes starts nodes that simulate containers, until ctx ends.
func StartNodes(ctx context.Context, c *cluster.Cluster, nodes, podsPerNode int, o node.Traits) error {
	_, err := node.Start(ctx, node.Options{RESTConfig: c.RESTConfig(), Nodes: nodes, PodsPerNode: podsPerNode, Runtime: node.NewSimulatedRuntime(o)})
	return err
}

// Manage runs a manager that serves no metrics until ctx ends, and returns a channel with its
// error. setUp adds the controllers.
func (p *Plane) Manage(ctx context.Context, config *rest.Config, o ctrl.Options, setUp func(context.Context, ctrl.Manager) error) (<-chan error, error) {
	o.Scheme, o.Metrics, o.Controller.SkipNameValidation = p.Scheme(), server.Options{BindAddress: "0"}, new(true)
	mgr, err := ctrl.NewManager(config, o)
	if err != nil {
		return nil, errors.Join(errors.New("make a manager"), err)
	}
	if err := setUp(ctx, mgr); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	return ended, nil
}
