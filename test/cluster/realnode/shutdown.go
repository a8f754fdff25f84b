// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usher-dev/usher/test/cluster/logind"
	"github.com/usher-dev/usher/test/cluster/sandbox"
)

// shutdownPeriod is how long a kubelet gives the Pods from a priority on.
type shutdownPeriod struct {
	Priority int32 `json:"priority"`
	Seconds  int64 `json:"shutdownGracePeriodSeconds"`
}

// shutdownPeriods are those of docs/notices.md, shorter: Pods of the lowest priority end first, and hold up
// the others until they have.
func shutdownPeriods() []shutdownPeriod {
	return []shutdownPeriod{{Priority: -1000, Seconds: 15}, {Priority: 0, Seconds: 15}, {Priority: 2000000000, Seconds: 5}}
}

// startBus starts the machine's bus with logind's stand-in on it, if its kubelet is to hear of shutdowns.
func (m *machine) startBus(ctx context.Context) error {
	if m.shutdown == nil {
		return nil
	}
	var err error
	m.bus, err = m.spawn("bus"+m.suffix, m.options.Assets.dbus(), "--config-file="+m.path("bus.conf"), "--nofork", "--nopidfile", "--nosyslog")
	if err != nil {
		return err
	}
	return await(ctx, m.bus, func(context.Context) (err error) {
		m.logind, err = logind.Start(m.busAddress())
		return err
	})
}

// busSocket returns the bus's socket; the sandbox has its own /run.
func (p *place) busSocket() string { return "/run/bus" + p.suffix }

func (p *place) busAddress() string { return "unix:path=" + p.busSocket() }

// busEnv has the variable by which programs find the machine's bus.
func (m *machine) busEnv() []string {
	if m.logind == nil {
		return nil
	}
	return []string{"DBUS_SYSTEM_BUS_ADDRESS=" + m.busAddress()}
}

func (m *machine) stopBus(ctx context.Context) error {
	var errs []error
	if m.logind != nil {
		errs = append(errs, m.logind.Close())
	}
	if m.bus != nil {
		errs = append(errs, m.bus.Stop(ctx, stopGrace))
	}
	return errors.Join(errs...)
}

// second returns the second machine.
func (n *Node) second() (*machine, error) {
	if len(n.machines) < 2 {
		return nil, errors.New("there is no second node")
	}
	return n.machines[1], nil
}

// AnnounceShutdown tells the second node's kubelet that its machine is about to go down or, with false, that it
// stays up after all. Nothing else happens to the machine.
func (n *Node) AnnounceShutdown(down bool) error {
	m, err := n.second()
	if err != nil {
		return err
	}
	return m.logind.Announce(down)
}

// RestartSecondKubelet restarts the second node's kubelet and returns when it has said that its node is ready, and knows
// its Pods: one that hears of a shutdown before that ends none.
func (n *Node) RestartSecondKubelet(ctx context.Context) error {
	m, err := n.second()
	if err != nil {
		return err
	}
	if err := m.stopKubelet(ctx); err != nil {
		return err
	}
	if err := m.restart(ctx); err != nil {
		return err
	}
	return await(ctx, m.kubelet, m.knowsPods)
}

// knowsPods returns nil if the kubelet has all Pods of its node.
func (m *machine) knowsPods(ctx context.Context) error {
	bound, err := m.clients.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + m.name})
	if err != nil {
		return err
	}
	text, err := m.clients.CoreV1().RESTClient().Get().Resource("nodes").Name(m.name).SubResource("proxy").Suffix("pods").DoRaw(ctx)
	if err != nil {
		return err
	}
	var known corev1.PodList
	if err := json.Unmarshal(text, &known); err != nil {
		return fmt.Errorf("read the kubelet's Pods: %w", err)
	}
	if len(known.Items) < len(bound.Items) {
		return fmt.Errorf("the kubelet knows %d of %d Pods", len(known.Items), len(bound.Items))
	}
	return nil
}

// KillSecond ends all processes of the second node at once, those of its containers too, as if its machine were taken
// away. Its network stays: connections to its Pods are refused.
func (n *Node) KillSecond() error {
	m, err := n.second()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kubelet != nil {
		err = m.kubelet.Kill()
		m.kubelet = nil
	}
	// The shims first: otherwise they would report to nobody, and keep what has ended.
	return errors.Join(err, m.killShims(), sandbox.KillGroup(filepath.Join(m.options.Cgroup, m.cgroup)), m.containerd.Kill())
}

// killShims ends the processes that hold containers for containerd. They are in no control group of Pods.
func (m *machine) killShims() error {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		args, gone := os.ReadFile(file)
		pid, strange := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		words := strings.Split(string(args), "\x00")
		if gone == nil && strange == nil && strings.HasPrefix(filepath.Base(words[0]), "containerd-shim") && slices.Contains(words, m.socket()) {
			err = errors.Join(err, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	return err
}

// StartSecond starts the second node again after KillSecond, and returns when it is ready. What ran on it does not come
// back.
func (n *Node) StartSecond(ctx context.Context) error {
	m, err := n.second()
	if err != nil {
		return err
	}
	if err := m.startContainerd(ctx); err != nil {
		return err
	}
	return m.restart(ctx)
}

// restart starts the kubelet and waits until it has said that its node is ready.
func (m *machine) restart(ctx context.Context) error {
	began := time.Now().Truncate(time.Second)
	if err := m.startKubelet(); err != nil {
		return err
	}
	return await(ctx, m.kubelet, func(ctx context.Context) error { return m.readySince(ctx, began) })
}

// readySince returns nil if the kubelet has said since a time that its node is ready.
func (m *machine) readySince(ctx context.Context, began time.Time) error {
	if m.logind.Locks() == m.locks {
		return errors.New("the kubelet has not asked logind for a lock yet")
	}
	node, err := m.clients.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(began) {
			return nil
		}
	}
	return errors.New("the kubelet has not said that the node is ready")
}
