// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/usher-dev/usher/test/cluster"
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
	// NodeGone is how long the control plane waits before it considers a silent node
	// lost; default 8 s.
	NodeGone time.Duration
	// Tell receives the progress; nil is allowed.
	Tell progress.Sink
}

const defaultNodeGone = 8 * time.Second

// Node is a running cluster of one node.
type Node struct {
	options Options
	plane   *cluster.Cluster
	spawner *process.Spawner
	clients kubernetes.Interface

	containerd *process.Process
	failed     chan error

	mu      sync.Mutex
	kubelet *process.Process // nil if it does not run
}

// Start starts everything and returns when the node is ready and accepts Pods.
func Start(ctx context.Context, o Options) (*Node, error) {
	if o.NodeGone == 0 {
		o.NodeGone = defaultNodeGone
	}
	n := &Node{options: o, spawner: process.NewSpawner(), failed: make(chan error, 1)}
	for _, step := range []func(context.Context) error{
		func(context.Context) error { return errors.Join(makeNetwork(), n.configure()) },
		n.startContainerd, n.startPlaneAndImport, n.StartKubelet, n.awaitNode,
	} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, n.Stop(ctx))
		}
	}
	return n, nil
}

// startPlaneAndImport does two independent things at once.
func (n *Node) startPlaneAndImport(ctx context.Context) error {
	imported := make(chan error, 1)
	go func() { imported <- n.importAll(ctx) }()
	return errors.Join(n.startPlane(ctx), <-imported)
}

func (n *Node) path(parts ...string) string {
	return filepath.Join(append([]string{n.options.Dir}, parts...)...)
}

func (n *Node) tell(task string, state progress.State, detail string) {
	n.options.Tell.Tell(progress.Event{Task: task, State: state, Detail: detail})
}

// Plane is the control plane.
func (n *Node) Plane() *cluster.Cluster { return n.plane }

// RESTConfig is an administrator client configuration, for use inside.
func (n *Node) RESTConfig() *rest.Config { return n.plane.RESTConfig() }

// Kubeconfig is the path of the administrator's kubeconfig, for use inside.
func (n *Node) Kubeconfig() string { return n.plane.Kubeconfig() }

// Failed receives the error of a part that ended unexpectedly.
func (n *Node) Failed() <-chan error { return n.failed }

// Stop ends the kubelet, the control plane and containerd. Containers keep running
// until the sandbox ends.
func (n *Node) Stop(ctx context.Context) error {
	errs := []error{n.StopKubelet(ctx)}
	if n.plane != nil {
		errs = append(errs, n.plane.Stop(ctx))
	}
	if n.containerd != nil {
		errs = append(errs, n.containerd.Stop(ctx, stopGrace))
	}
	n.spawner.Close()
	return errors.Join(errs...)
}

// spawn starts a part of the node and watches it.
func (n *Node) spawn(name, path string, args ...string) (*process.Process, error) {
	p, err := n.spawner.Start(process.Spec{
		Name: name, Path: path, Args: args, Dir: n.options.Dir, Log: n.path("logs", name+".log"),
		Env: n.options.Assets.env(),
	})
	if err != nil {
		return nil, err
	}
	go func() {
		<-p.Done()
		if !p.Asked() {
			n.fail(p.ExitError())
		}
	}()
	return p, nil
}

func (n *Node) fail(err error) {
	select {
	case n.failed <- err:
	default: // One failure is enough.
	}
}

func (n *Node) startContainerd(ctx context.Context) (err error) {
	n.tell("containerd", progress.Starting, "")
	n.containerd, err = n.spawn("containerd", n.options.Assets.containerd(), "--config", n.path("containerd.toml"))
	if err != nil {
		return err
	}
	return n.await(ctx, n.containerd, "ready", func(ctx context.Context) error { return n.ctr(ctx, "version") })
}

// await waits until a part is ready.
func (n *Node) await(ctx context.Context, p *process.Process, detail string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("after %s", startTime))
	defer cancel()
	if err := p.WaitReady(ctx, ready); err != nil {
		n.tell(p.Name(), progress.Failed, "")
		return err
	}
	n.tell(p.Name(), progress.Done, detail)
	return nil
}

func (n *Node) startPlane(ctx context.Context) error {
	// Of a repeated flag, the last one wins.
	extra := cluster.ExtraArgs{
		APIServer: []string{
			"--bind-address=0.0.0.0", "--advertise-address=" + NodeAddress, "--kubelet-preferred-address-types=InternalIP",
		},
		ControllerManager: []string{"--node-monitor-period=1s", "--node-monitor-grace-period=" + n.options.NodeGone.String()},
	}
	plane, err := cluster.Start(ctx, cluster.Options{
		Dir: n.path("cluster"), Port: apiPort, ExtraArgs: extra, Tell: n.options.Tell,
	})
	if err != nil {
		return err
	}
	n.plane = plane
	go func() {
		<-plane.Done()
		if err := plane.Err(); err != nil {
			n.fail(err)
		}
	}()
	n.clients, err = kubernetes.NewForConfig(plane.RESTConfig())
	return err
}

// StartKubelet starts the kubelet unless it already runs.
func (n *Node) StartKubelet(_ context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kubelet != nil {
		return nil
	}
	kubeconfig, err := n.plane.UserKubeconfig("system:node:"+NodeName, "system:nodes")
	if err != nil {
		return err
	}
	n.kubelet, err = n.spawn("kubelet", n.options.Assets.Kubelet,
		"--config="+n.path("kubelet.yaml"), "--kubeconfig="+kubeconfig,
		"--hostname-override="+NodeName, "--node-ip="+NodeAddress, "-v=2")
	return err
}

// StopKubelet ends only the kubelet: its containers keep running, and the control plane
// hears nothing from the node. It is not an error if the kubelet does not run.
func (n *Node) StopKubelet(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kubelet == nil {
		return nil
	}
	err := n.kubelet.Stop(ctx, stopGrace)
	n.kubelet = nil
	return err
}

func (n *Node) awaitNode(ctx context.Context) error {
	n.tell("kubelet", progress.Starting, "")
	return n.await(ctx, n.kubelet, "node "+NodeName+" is ready", n.ready)
}

// ready returns nil if the node is ready and accepts Pods.
func (n *Node) ready(ctx context.Context) error {
	node, err := n.clients.CoreV1().Nodes().Get(ctx, NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(node.Spec.Taints) > 0 {
		return fmt.Errorf("the node has the taint %s", node.Spec.Taints[0].Key)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return nil
		}
		if c.Type == corev1.NodeReady {
			return errors.New(c.Message)
		}
	}
	return errors.New("the kubelet has not written the node's status yet")
}

// ctr runs containerd's own client.
func (n *Node) ctr(ctx context.Context, args ...string) error {
	return n.options.Assets.run(ctx, n.options.Assets.ctr(),
		append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...)
}

// importAll makes the images of all archives available to the node, as if it had pulled
// them.
func (n *Node) importAll(ctx context.Context) error {
	for _, archive := range n.options.Images {
		if err := n.ctr(ctx, "images", "import", archive); err != nil {
			return fmt.Errorf("import images: %w", err)
		}
	}
	// Garbage collection must not remove it, because it cannot be pulled.
	return n.ctr(ctx, "images", "label", PauseImage, "io.cri-containerd.pinned=pinned")
}
