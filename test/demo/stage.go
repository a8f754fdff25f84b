// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/cluster/realnode"
	"github.com/usher-dev/usher/test/cluster/sandbox"
)

const (
	nodes = 2
	// closeTime bounds the end of everything.
	closeTime = 30 * time.Second
	dialTime  = 5 * time.Second
	// keepAlive is how soon callers notice that a registry is back.
	keepAlive = 2 * time.Second
)

// stage is everything that a demonstration runs on.
type stage struct {
	dir      string // all files that it writes
	root     string // the checkout
	cluster  *cluster.Cluster
	registry *cluster.Etcd
	etcd     *clientv3.Client
	agent    *node.Agent // nil on a real node
	place    *sandbox.Place
	node     *realnode.Node // nil on the development cluster
	images   io.Closer
	kube     *kube
	usher    *usher
}

// openStage builds and starts everything. On an error, nothing is left running.
func openStage(ctx context.Context, o Options, tell progress.Sink) (*stage, error) {
	root, err := checkout.Find(o.Getenv)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "usher-demo-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the demo: %w", err)
	}
	s := &stage{dir: dir, root: root, place: o.Place}
	steps := []func(context.Context, progress.Sink) error{s.buildAndStart, s.startNodes, s.startRegistry, s.install, s.startUsher}
	if s.place != nil {
		steps = append([]func(context.Context, progress.Sink) error{s.startRealNode}, steps[2:]...)
	}
	for _, step := range steps {
		if err := step(ctx, tell); err != nil {
			return nil, errors.Join(err, s.close(ctx), s.cleanUp())
		}
	}
	return s, nil
}

func (s *stage) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// buildAndStart builds Usher and the web service while the control plane starts, which
// is mostly waiting.
func (s *stage) buildAndStart(ctx context.Context, tell progress.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	programs := []checkout.Program{
		{Name: "build usher", Module: s.root, Pkg: "./cmd/usher", Out: s.path("bin", "usher")},
		{Name: "build web", Module: filepath.Join(s.root, "test"), Pkg: "./cmd/web", Out: s.path("images", "web")},
	}
	var building sync.WaitGroup
	var builds error
	building.Go(func() {
		for _, p := range programs {
			if builds = p.Compile(ctx, tell); builds != nil {
				cancel()
				return
			}
		}
	})
	started, err := cluster.Start(ctx, cluster.Options{Dir: s.path("cluster"), Tell: tell})
	s.cluster = started
	if err != nil {
		cancel()
	}
	building.Wait()
	if builds != nil {
		return builds // otherwise the start's error would only say that it was interrupted
	}
	return err
}

// startRegistry starts a second etcd, unrelated to Kubernetes.
func (s *stage) startRegistry(ctx context.Context, tell progress.Sink) error {
	const task = "etcd (registry)"
	tell.Tell(progress.Event{Task: task, State: progress.Starting})
	registry, err := cluster.StartEtcd(ctx, s.path("registry"), cluster.EtcdOptions{})
	if err != nil {
		return fmt.Errorf("the service registry: %w", err)
	}
	s.registry = registry
	s.etcd, err = clientv3.New(clientv3.Config{
		Endpoints: []string{registry.Endpoint()}, DialTimeout: dialTime,
		DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAlive,
		Logger: zap.NewNop(), // its outages are intended
	})
	if err != nil {
		return fmt.Errorf("the service registry: %w", err)
	}
	tell.Tell(progress.Event{Task: task, State: progress.Done, Detail: "ready at " + registry.Endpoint()})
	return nil
}

func (s *stage) startNodes(ctx context.Context, tell progress.Sink) error {
	runtime, err := node.NewProcessRuntime(node.ProcessOptions{
		Images: node.ProgramDir(s.path("images"), "v1", "v2"),
		LogDir: s.path("containers"),
	})
	if err != nil {
		return err
	}
	// The nodes live until Stop, not only while the stage is being opened.
	s.agent, err = node.Start(context.WithoutCancel(ctx), node.Options{
		RESTConfig: s.cluster.RESTConfig(), Runtime: runtime, Nodes: nodes,
	})
	if err != nil {
		return errors.Join(err, runtime.Close(ctx))
	}
	tell.Tell(progress.Event{Task: "nodes", State: progress.Done, Detail: fmt.Sprintf("%d ready", nodes)})
	return nil
}

// install creates the API, the rights and the namespace.
func (s *stage) install(ctx context.Context, tell progress.Sink) error {
	const task = "Usher's API"
	tell.Tell(progress.Event{Task: task, State: progress.Starting})
	var err error
	if s.kube, err = newKube(s.cluster.RESTConfig()); err != nil {
		return err
	}
	if err := checkout.Install(ctx, s.kube.client, s.root, usherUser); err != nil {
		return err
	}
	if err := s.kube.openNamespace(ctx); err != nil {
		return err
	}
	registry, err := registryObject(s.registry.Endpoint())
	if err != nil {
		return err
	}
	if _, err := s.kube.apply(ctx, registry); err != nil {
		return err
	}
	tell.Tell(progress.Event{Task: task, State: progress.Done, Detail: "installed"})
	return nil
}

func (s *stage) startUsher(_ context.Context, tell progress.Sink) error {
	kubeconfig, err := s.cluster.UserKubeconfig(usherUser)
	if err != nil {
		return err
	}
	s.usher = newUsher(s.path("bin", "usher"), kubeconfig, s.path("logs", "usher.log"))
	if err := s.usher.start(); err != nil {
		return err
	}
	tell.Tell(progress.Event{Task: "usher", State: progress.Done, Detail: "running with its own rights"})
	return nil
}

// close ends everything, the youngest first. It takes the time it needs, even if ctx
// has ended.
func (s *stage) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	var errs []error
	if s.usher != nil {
		errs = append(errs, s.usher.close(ctx))
	}
	if s.agent != nil {
		errs = append(errs, s.agent.Stop(ctx))
	}
	if s.etcd != nil {
		errs = append(errs, s.etcd.Close())
	}
	if s.images != nil {
		errs = append(errs, s.images.Close())
	}
	var both sync.WaitGroup
	stopped := make([]error, 2)
	if s.registry != nil {
		both.Go(func() { stopped[0] = s.registry.Kill() })
	}
	switch {
	case s.node != nil:
		both.Go(func() { stopped[1] = s.node.Stop(ctx) })
	case s.cluster != nil:
		both.Go(func() { stopped[1] = s.cluster.Stop(ctx) })
	}
	both.Wait()
	return errors.Join(append(errs, stopped...)...)
}

// cleanUp removes the files.
func (s *stage) cleanUp() error { return os.RemoveAll(s.dir) }
