// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/cluster/progress"
)

const (
	// stopTimeout bounds the stop of a cluster. All data is discarded, so there is
	// nothing to wait for.
	stopTimeout = 20 * time.Second
	// simulatedPods is the Pod capacity of a node with simulated containers.
	simulatedPods = 5000
)

// readyFile describes a cluster that is ready to people and other processes. It is valid
// only while the cluster's directory is locked.
func readyFile(dir string) string { return filepath.Join(dir, "ready.txt") }

func writeReady(s settings, c *cluster.Cluster) error {
	text := fmt.Sprintf(`Kubernetes %s on %s with %d nodes, ready since %s.

Use it:   export KUBECONFIG=%s
          kubectl create deployment web --image=web:v1 --replicas=3
Stop it:  make down
`, c.Version(), c.Server(), s.nodes, time.Now().Format(time.TimeOnly), c.Kubeconfig())
	fmt.Print(text)
	// Renamed, so that nobody reads half of it.
	temp := readyFile(s.dir) + ".new"
	return errors.Join(os.WriteFile(temp, []byte(text), 0o600), os.Rename(temp, readyFile(s.dir)))
}

// runCluster runs the cluster until ctx ends, which is not an error, or a component does.
func runCluster(ctx context.Context, s settings) (err error) {
	tell, end := progress.Show(os.Stderr)
	defer end()
	c, err := cluster.Start(ctx, cluster.Options{Dir: s.dir, Port: s.port, Tell: tell})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bounded(ctx, c.Stop)) }()
	agent, err := startNodes(ctx, c, s, tell)
	if err != nil {
		return fmt.Errorf("start the nodes: %w", err)
	}
	if agent != nil {
		defer func() { err = errors.Join(err, bounded(ctx, agent.Stop)) }()
	}
	if err := writeReady(s, c); err != nil {
		return err
	}
	select {
	case <-c.Done():
		return c.Err()
	case <-ctx.Done():
		return nil
	}
}

// bounded gives a stop its own timeout: the end of ctx is why we stop, and must not cut
// the stop short.
func bounded(ctx context.Context, stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return stop(ctx)
}

// startNodes gives the cluster its nodes; nil if it is to have none. They outlive ctx.
func startNodes(ctx context.Context, c *cluster.Cluster, s settings, tell progress.Sink) (*node.Agent, error) {
	if s.nodes == 0 {
		return nil, nil
	}
	runtime, pods, err := nodeRuntime(ctx, s, tell)
	if err != nil {
		return nil, err
	}
	agent, err := node.Start(context.WithoutCancel(ctx), node.Options{
		RESTConfig: c.RESTConfig(), Runtime: runtime, Nodes: s.nodes, PodsPerNode: pods, Logger: logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		// The agent closes the runtime only if it has started.
		return nil, errors.Join(err, runtime.Close(ctx))
	}
	return agent, nil
}

// nodeRuntime returns the runtime for the containers, and the Pod capacity of a node; 0
// means the agent's default.
func nodeRuntime(ctx context.Context, s settings, tell progress.Sink) (node.Runtime, int, error) {
	if s.simulate {
		runtime, err := node.NewSimulatedRuntime(node.SimulatedOptions{})
		return runtime, simulatedPods, err
	}
	root, err := checkout.Find(os.Getenv)
	if err != nil {
		return nil, 0, err
	}
	programs := filepath.Join(s.dir, "programs")
	web := checkout.Program{Name: "build web", Module: filepath.Join(root, "test"), Pkg: "./cmd/web", Out: filepath.Join(programs, "web")}
	if err := web.Compile(ctx, tell); err != nil {
		return nil, 0, err
	}
	runtime, err := node.NewProcessRuntime(node.ProcessOptions{
		Images: node.ProgramDir(programs), LogDir: filepath.Join(s.dir, "logs", "containers"),
	})
	return runtime, 0, err
}
