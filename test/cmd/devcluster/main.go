// SPDX-License-Identifier: Apache-2.0

// Command devcluster runs a real Kubernetes control plane on this machine for the
// development of Usher, until Ctrl-C: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, built once from source. It listens only on the loopback interface and
// needs neither containers nor root.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/node"
	"github.com/usher-dev/usher/test/stage"
)

const (
	// dirEnv names the environment variable for the cluster's directory.
	dirEnv = "USHER_DEVCLUSTER_DIR"
	// simulatedPods is the Pod capacity of a node with simulated containers.
	simulatedPods = 5000
)

func main() { stage.Main("devcluster", false, command) }

func command(flags *flag.FlagSet) func(context.Context) error {
	var (
		nodes               int
		simulate, buildOnly bool
	)
	flags.IntVar(&nodes, "nodes", 2, "the `number` of nodes; 0 leaves all Pods pending")
	flags.BoolVar(&simulate, "simulate", false, "only simulate containers, for clusters with thousands of Pods")
	flags.BoolVar(&buildOnly, "build", false, "only build etcd and the Kubernetes binaries")
	return func(ctx context.Context) error {
		if buildOnly {
			_, err := build.Ensure(ctx)
			return err
		}
		return run(ctx, nodes, simulate)
	}
}

func run(ctx context.Context, nodes int, simulate bool) error {
	cache, err := os.UserCacheDir()
	dir := cmp.Or(os.Getenv(dirEnv), filepath.Join(cache, "usher", "devcluster"))
	if err != nil && os.Getenv(dirEnv) == "" {
		return fmt.Errorf("find the cache directory (or set %s): %w", dirEnv, err)
	}
	return stage.Run{
		Dir: dir, Out: os.Stdout,
		Setup: []stage.Step{
			func(ctx context.Context, s *stage.Stage) error { return s.StartCluster(ctx, "", s.Web()) },
			func(ctx context.Context, s *stage.Stage) error { return startNodes(ctx, s, nodes, simulate) },
		},
		Play: func(ctx context.Context, s *stage.Stage) error { return serve(ctx, s, nodes) },
	}.Run(ctx)
}

func startNodes(ctx context.Context, s *stage.Stage, nodes int, simulate bool) error {
	if nodes == 0 {
		return nil
	}
	if !simulate {
		return s.StartWebNodes(ctx, nodes)
	}
	runtime := node.NewSimulatedRuntime(node.Traits{})
	return s.StartNodes(ctx, node.Options{RESTConfig: s.Cluster.RESTConfig(), Runtime: runtime, Nodes: nodes, PodsPerNode: simulatedPods})
}

// serve says how to use the cluster, and returns when it is interrupted, which is not an
// error, or a component has ended.
func serve(ctx context.Context, s *stage.Stage, nodes int) error {
	fmt.Printf(`Kubernetes %s on %s with %d nodes.

Use it:   export KUBECONFIG=%s
          kubectl create deployment web --image=web:v1 --replicas=3
Logs:     %s
Stop it:  Ctrl-C
`, s.Cluster.Version(), s.Cluster.Server(), nodes, s.Cluster.Kubeconfig(), filepath.Dir(s.Cluster.Logs()[0]))
	select {
	case <-s.Cluster.Done():
		return s.Cluster.Err()
	case <-ctx.Done():
		return nil
	}
}
