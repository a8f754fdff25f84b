// SPDX-License-Identifier: Apache-2.0

// Package realnode runs a Kubernetes cluster of one real node or two: the control plane
// of package cluster, kubelets built from their Go module, and containerd, runc and the
// CNI plugins of the distribution, unpacked but not installed.
//
// It must run inside a sandbox (package sandbox); everything here ends with the
// sandbox. The network there is the nodes': Pods have addresses in 10.244.77.0/24 (those
// of the second node in 10.244.78.0/24) that the nodes reach, and they reach the nodes and
// the API server at 10.244.76.2 or, as programs in a cluster do, through the Service
// kubernetes. One kube-proxy serves both nodes; there is no DNS and no way out.
package realnode

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
)

const (
	// startTime bounds the start of the kubelet and of containerd, each.
	startTime = 2 * time.Minute
	stopGrace = 5 * time.Second
)

// Options configures Start.
type Options struct {
	// Dir is the directory for the node's files; it must not be on an overlay.
	Dir string
	// Cgroup is the sandbox's control group.
	Cgroup string
	// Assets are the programs.
	Assets Assets
	// Images are image archives to import before the node is ready. One of them must
	// hold PauseImage.
	Images []string
	// Mirrors maps hosts in image names to the registry URLs to pull from instead.
	Mirrors map[string]string
	// Second adds a second node, which takes only Pods that tolerate SecondTaint.
	Second bool
	// NodeGone is how long the control plane waits before it considers a silent node
	// lost.
	NodeGone time.Duration
	// Failed is called with the error of a part that ended unexpectedly.
	Failed func(error)
	// Progress receives the progress; nil is allowed.
	Progress progress.Sink
}

// Node is a running cluster of one node, or two.
type Node struct {
	// Plane is the control plane.
	Plane   *cluster.Cluster
	options Options
	clients kubernetes.Interface
	// machines are the first node and, if it is wanted, the second.
	machines []*machine
	proxy    *process.Process
}

// Start starts everything and returns when the node is ready and accepts Pods.
func Start(ctx context.Context, o Options) (*Node, error) {
	n := &Node{options: o}
	for i, p := range places() {
		if i == 0 || o.Second {
			n.machines = append(n.machines, &machine{Node: n, place: p})
		}
	}
	for _, step := range []func(context.Context) error{
		func(context.Context) error { return makeNetwork() },
		n.each((*machine).configure), n.each((*machine).startBus), n.each((*machine).startContainerd), n.startPlaneAndImport,
		n.each(func(m *machine, _ context.Context) error { return m.startKubelet() }), n.each((*machine).awaitNode), n.startProxy,
	} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, n.Stop(ctx))
		}
	}
	return n, nil
}

// each does the same on all machines, one after the other.
func (n *Node) each(do func(*machine, context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, m := range n.machines {
			if err := do(m, ctx); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
		}
		return nil
	}
}

// startPlaneAndImport does two independent things at once.
func (n *Node) startPlaneAndImport(ctx context.Context) error {
	imported := make(chan error, 1)
	go func() { imported <- n.each((*machine).importAll)(ctx) }()
	return errors.Join(n.startPlane(ctx), <-imported)
}

func (n *Node) path(parts ...string) string {
	return filepath.Join(append([]string{n.options.Dir}, parts...)...)
}

// Stop ends the nodes and the control plane. Containers keep running until the sandbox
// ends.
func (n *Node) Stop(ctx context.Context) error {
	errs := list.Map(n.machines, func(m *machine) error { return m.stop(ctx) })
	if n.proxy != nil {
		errs = append(errs, n.proxy.Stop(ctx, stopGrace))
	}
	if n.Plane != nil {
		errs = append(errs, n.Plane.Stop(ctx))
	}
	return errors.Join(errs...)
}

// spawn starts a part of the node and watches it.
func (n *Node) spawn(name, path string, args ...string) (*process.Process, error) {
	return n.spawnIn(nil, name, path, args...)
}

// spawnIn is spawn with more variables in the environment.
func (n *Node) spawnIn(env []string, name, path string, args ...string) (*process.Process, error) {
	return process.Start(process.Spec{
		Name: name, Path: path, Args: args, Dir: n.options.Dir, Log: n.path("logs", name+".log"),
		Env: append(n.options.Assets.env(), env...), Failed: n.options.Failed,
	})
}

// await waits until a part is ready.
func await(ctx context.Context, p *process.Process, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("after %s", startTime))
	defer cancel()
	return p.WaitReady(ctx, ready)
}

func (n *Node) startPlane(ctx context.Context) error {
	// Of a repeated flag, the last one wins.
	extra := cluster.ExtraArgs{
		build.APIServer: {
			"--bind-address=0.0.0.0", "--advertise-address=" + NodeAddress, "--kubelet-preferred-address-types=InternalIP",
			"--endpoint-reconciler-type=lease", // kube-proxy rejects requests to Services without endpoints.
		},
		build.ControllerManager: {"--node-monitor-period=1s", "--node-monitor-grace-period=" + n.options.NodeGone.String()},
	}
	plane, err := cluster.Start(ctx, cluster.Options{
		Dir: n.path("cluster"), Port: apiPort, ExtraArgs: extra, Progress: n.options.Progress,
	})
	if err != nil {
		return err
	}
	n.Plane = plane
	go func() {
		<-plane.Done()
		if err := plane.Err(); err != nil {
			n.options.Failed(err)
		}
	}()
	n.clients, err = kubernetes.NewForConfig(plane.RESTConfig())
	return err
}

// StartKubelet starts the first node's kubelet unless it already runs.
func (n *Node) StartKubelet(context.Context) error { return n.machines[0].startKubelet() }

// StopKubelet ends only the first node's kubelet: its containers keep running, and the control plane
// gets no heartbeat of the node. It is not an error if the kubelet does not run.
func (n *Node) StopKubelet(ctx context.Context) error { return n.machines[0].stopKubelet(ctx) }

// The nodes and their addresses.
const (
	// NodeName is the name of the first node.
	NodeName = "node-1"
	// NodeAddress is the node's address; there Pods reach programs that listen on all addresses.
	NodeAddress = "10.244.76.2"
	// PodRange is the range of the Pods' addresses.
	PodRange = "10.244.77.0/24"
	// SecondNode is the name of the second node, if there is one.
	SecondNode    = "node-2"
	secondAddress = "10.244.76.3"
	secondRange   = "10.244.78.0/24"
	// SecondTaint keeps Pods off the second node that do not tolerate it.
	SecondTaint = "usher.test/second"
	// serviceAddress is the address of the Service kubernetes. The node has this
	// address and the API server listens on the Service's port: that replaces
	// kube-proxy for the one Service that matters.
	serviceAddress = "10.96.0.1"
	apiPort        = 443
)
