// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usher-dev/usher/test/cluster/logind"
	"github.com/usher-dev/usher/test/cluster/process"
)

// machine is one node: containerd and a kubelet. All machines share the network of the
// sandbox, which routes between their Pods.
type machine struct {
	*Node
	place
	containerd *process.Process

	// bus and logind are what the kubelet hears of a shutdown by; nil if the node has none.
	bus    *process.Process
	logind *logind.Logind

	mu      sync.Mutex
	kubelet *process.Process // nil if it does not run
	// locks is how many locks were asked for before the kubelet started.
	locks int
}

// place has the settings in which machines differ.
type place struct {
	// name is the node's; suffix ends the names of the machine's other parts.
	name, suffix string
	// address is the node's address, pods the range of its Pods' addresses.
	address, pods string
	// port is the kubelet's port; its health port is two lower.
	port int
	// cgroup holds the Pods, below the sandbox's; the kubelet ends unknown processes in it.
	cgroup string
	// taints keep Pods away that do not ask for the node.
	taints []corev1.Taint
	// shutdown is how long the kubelet gives Pods when the machine shuts down, by their priority;
	// nil if it hears of no shutdown.
	shutdown []shutdownPeriod
}

// places returns the places of the first machine and of the second.
func places() []place {
	return []place{
		{name: NodeName, address: NodeAddress, pods: PodRange, port: 10250},
		{
			name: SecondNode, suffix: "-2", address: secondAddress, pods: secondRange, port: 10350, cgroup: SecondNode,
			taints:   []corev1.Taint{{Key: SecondTaint, Effect: corev1.TaintEffectNoSchedule}},
			shutdown: shutdownPeriods(),
		},
	}
}

func (m *machine) path(parts ...string) string {
	return filepath.Join(append([]string{m.options.Dir, m.name}, parts...)...)
}

// socket returns containerd's socket; the sandbox has its own /run.
func (p *place) socket() string { return "/run/containerd" + p.suffix + "/containerd.sock" }

func (m *machine) startContainerd(ctx context.Context) error {
	return m.options.Progress.Task("containerd"+m.suffix, func() (_ string, err error) {
		m.containerd, err = m.spawn("containerd"+m.suffix, m.options.Assets.containerd(), "--config", m.path("containerd.toml"))
		if err != nil {
			return "", err
		}
		return "ready", await(ctx, m.containerd, m.answersKubelets)
	})
}

// answersKubelets returns nil if containerd serves its CRI. It does so later than its own interface, and a kubelet that
// asks before that ends. Messages without fields stand for those of the CRI.
func (m *machine) answersKubelets(ctx context.Context) error {
	conn, err := grpc.NewClient("unix://"+m.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	const version = "/runtime.v1.RuntimeService/Version"
	return errors.Join(conn.Invoke(ctx, version, &emptypb.Empty{}, &emptypb.Empty{}), conn.Close())
}

func (m *machine) startKubelet() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kubelet != nil {
		return nil
	}
	kubeconfig, err := m.Plane.UserKubeconfig("system:node:"+m.name, "system:nodes")
	if err != nil {
		return err
	}
	if m.logind != nil {
		m.locks = m.logind.Locks()
	}
	root := "/var/lib/kubelet" + m.suffix
	m.kubelet, err = m.spawnIn(m.busEnv(), "kubelet"+m.suffix, m.options.Assets.Kubelet,
		"--config="+m.path("kubelet.yaml"), "--kubeconfig="+kubeconfig, "--root-dir="+root, "--cert-dir="+filepath.Join(root, "pki"),
		"--hostname-override="+m.name, "--node-ip="+m.address, "-v=2")
	return err
}

func (m *machine) stopKubelet(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kubelet == nil {
		return nil
	}
	err := m.kubelet.Stop(ctx, stopGrace)
	m.kubelet = nil
	return err
}

func (m *machine) awaitNode(ctx context.Context) error {
	return m.options.Progress.Task("kubelet"+m.suffix, func() (string, error) {
		return "node " + m.name + " is ready", await(ctx, m.kubelet, m.ready)
	})
}

// ready returns nil if the node is ready and accepts Pods, and its kubelet hears of shutdowns if it should.
func (m *machine) ready(ctx context.Context) error {
	if m.logind != nil && m.logind.Locks() == m.locks {
		return errors.New("the kubelet has not asked logind for a lock yet")
	}
	node, err := m.clients.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key != SecondTaint {
			return fmt.Errorf("the node has the taint %s", taint.Key)
		}
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
func (m *machine) ctr(ctx context.Context, args ...string) error {
	return m.options.Assets.run(ctx, m.options.Assets.ctr(),
		append([]string{"--address", m.socket(), "--namespace", "k8s.io"}, args...)...)
}

// importAll makes the images of all archives available to the node, as if it had pulled
// them.
func (m *machine) importAll(ctx context.Context) error {
	for _, archive := range m.options.Images {
		if err := m.ctr(ctx, "images", "import", archive); err != nil {
			return fmt.Errorf("import images: %w", err)
		}
	}
	// Garbage collection must not remove it, because it cannot be pulled.
	return m.ctr(ctx, "images", "label", PauseImage, "io.cri-containerd.pinned=pinned")
}

// stop ends the kubelet and containerd.
func (m *machine) stop(ctx context.Context) error {
	errs := []error{m.stopKubelet(ctx)}
	if m.containerd != nil {
		errs = append(errs, m.containerd.Stop(ctx, stopGrace))
	}
	return errors.Join(append(errs, m.stopBus(ctx))...)
}

// bridge is the nodes' own interface. A bridge without ports works like a dummy
// interface, and every kernel that can run Pods has one; the kubelet refuses the
// loopback interface.
const bridge = "usher0"

// makeNetwork assigns the nodes' addresses in the sandbox.
func makeNetwork() error {
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}); err != nil {
		return fmt.Errorf("add a bridge (the kernel needs the module bridge): %w", err)
	}
	for name, addresses := range map[string][]string{"lo": nil, bridge: {NodeAddress, secondAddress, serviceAddress}} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		for _, address := range addresses {
			parsed, err := netlink.ParseAddr(address + "/32")
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(link, parsed); err != nil {
				return fmt.Errorf("address %s of %s: %w", address, name, err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
	}
	return nil
}
