// SPDX-License-Identifier: Apache-2.0

// Command devcluster runs a real Kubernetes control plane on this machine for the
// development of Usher, until Ctrl-C: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, built once from source. It listens only on the loopback interface and
// needs neither containers nor root.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster"
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
		o         options
		buildOnly bool
	)
	flags.IntVar(&o.nodes, "nodes", 2, "the `number` of nodes; 0 leaves all Pods pending")
	flags.BoolVar(&o.usher, "usher", false, "run Usher with its guard as well, and simulate containers, so that the commands of README.md work as they stand")
	flags.BoolVar(&o.simulate, "simulate", false, "only simulate containers, for clusters with thousands of Pods")
	flags.BoolVar(&o.ha, "ha", false, "three members of etcd, and API servers behind a TCP balancer, as production has them")
	flags.IntVar(&o.plane.APIServers, "api-servers", 2, "with -ha, the `number` of API servers")
	flags.DurationVar(&o.plane.RoundTrip, "round-trip", time.Millisecond, "with -ha, the latency between members of etcd")
	flags.BoolVar(&buildOnly, "build", false, "only build etcd and the Kubernetes binaries")
	return func(ctx context.Context) error {
		if buildOnly {
			_, err := build.Ensure(ctx)
			return err
		}
		if o.plane.APIServers < 1 || o.plane.RoundTrip < 0 {
			return fmt.Errorf("%w: -api-servers=%d -round-trip=%s: at least one, and no less than 0", stage.ErrUsage, o.plane.APIServers, o.plane.RoundTrip)
		}
		if o.usher && !o.simulate {
			flags.Visit(func(f *flag.Flag) { o.processes = o.processes || f.Name == "simulate" })
			o.simulate = true
		}
		if o.usher && o.nodes == 0 {
			return fmt.Errorf("%w: -usher needs nodes for its Pods: leave -nodes=0 out", stage.ErrUsage)
		}
		if o.processes {
			return fmt.Errorf("%w: -usher needs simulated containers: processes have addresses of 127.0.0.0/8, which no Service lists; "+
				"leave -simulate=false out, or start Usher by hand (docs/devcluster.md)", stage.ErrUsage)
		}
		return run(ctx, o)
	}
}

// options are the flags.
type options struct {
	nodes           int
	usher, simulate bool
	// ha means that the control plane is as in plane.
	ha    bool
	plane cluster.HA
	// processes means that processes in addition to Usher are wanted.
	processes bool
}

func run(ctx context.Context, o options) error {
	cache, err := os.UserCacheDir()
	dir := cmp.Or(os.Getenv(dirEnv), filepath.Join(cache, "usher", "devcluster"))
	if err != nil && os.Getenv(dirEnv) == "" {
		return fmt.Errorf("find the cache directory (or set %s): %w", dirEnv, err)
	}
	setup := []stage.Step{
		func(ctx context.Context, s *stage.Stage) error {
			if o.ha {
				s.HA = &o.plane
			}
			return s.StartCluster(ctx, "", o.programs(s)...)
		},
		func(ctx context.Context, s *stage.Stage) error { return startNodes(ctx, s, o) },
	}
	if o.usher {
		setup = append(setup, installUsher, tools)
	}
	return stage.Run{
		Dir: dir, Out: os.Stdout, Setup: setup,
		Play: func(ctx context.Context, s *stage.Stage) error { return serve(ctx, s, o) },
	}.Run(ctx)
}

// programs returns the programs that the nodes and Usher need.
func (o options) programs(s *stage.Stage) []checkout.Program {
	if o.usher {
		return []checkout.Program{s.Usher()}
	}
	return []checkout.Program{s.Web()}
}

func startNodes(ctx context.Context, s *stage.Stage, o options) error {
	switch {
	case o.nodes == 0:
		return nil
	case !o.simulate:
		return errors.Join(refuseServices(ctx, s), s.StartWebNodes(ctx, o.nodes))
	}
	runtime := node.NewSimulatedRuntime(node.Traits{})
	return s.StartNodes(ctx, node.Options{RESTConfig: s.Cluster.RESTConfig(), Runtime: runtime, Nodes: o.nodes, PodsPerNode: simulatedPods})
}

// serve says how to use the cluster, and returns when it is interrupted, which is not an
// error, or a component has ended.
func serve(ctx context.Context, s *stage.Stage, o options) error {
	fmt.Printf("Kubernetes %s on %s with %d nodes.\n\n", s.Cluster.Version(), s.Cluster.Server(), o.nodes)
	fmt.Printf("Use it:   export KUBECONFIG=%s\n", s.Cluster.Kubeconfig())
	if o.usher {
		fmt.Printf("          export PATH=\"%s:$PATH\"    # kubectl and its plugin\n", s.Path("bin"))
		fmt.Print("Try it:   the commands of README.md, from \"A first Deployment\" on\n")
		fmt.Print("Look:     kubectl usher doctor; kubectl usher dashboard\n")
	} else {
		fmt.Print("          kubectl create deployment web --image=web:v1 --replicas=3\n")
	}
	if o.ha {
		fmt.Printf("Behind:   %d API servers (https://%s), %d members of etcd, round trips of %s between them\n",
			len(s.Cluster.APIServers()), strings.Join(s.Cluster.ServerAddresses(), ", https://"), len(s.Cluster.Members()), o.plane.RoundTrip)
	}
	fmt.Printf("Logs:     %s\nStop it:  Ctrl-C\n", filepath.Dir(s.Cluster.Logs()[0]))
	select {
	case <-s.Cluster.Done():
		return s.Cluster.Err()
	case <-ctx.Done():
		return nil
	}
}
