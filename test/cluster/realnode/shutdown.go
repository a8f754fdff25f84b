// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"errors"

	"github.com/usher-dev/usher/test/cluster/logind"
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
	if down && !m.logind.Held() {
		return errors.New("the kubelet has asked for no lock: it would hear of a shutdown too late")
	}
	return m.logind.Announce(down)
}

// AwaitShutdown waits until the second node's kubelet lets its machine go down.
func (n *Node) AwaitShutdown(ctx context.Context) error {
	m, err := n.second()
	if err != nil {
		return err
	}
	return m.logind.AwaitRelease(ctx)
}
