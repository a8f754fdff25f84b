// SPDX-License-Identifier: Apache-2.0

// Package logind stands in for systemd-logind, as far as a kubelet uses it: it gives out locks that
// delay a shutdown, and announces a shutdown and its end.
//
// It is no logind: no machine goes down, whether somebody holds a lock or not.
package logind

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
)

const (
	name  = "org.freedesktop.login1"
	path  = dbus.ObjectPath("/org/freedesktop/login1")
	iface = "org.freedesktop.login1.Manager"

	// longestDelay is more than any kubelet here asks for: one that asks for more than logind grants
	// writes a configuration of logind into /etc, and that is the machine's.
	longestDelay = 10 * time.Minute
)

// Logind is a stand-in on a bus.
type Logind struct {
	bus *dbus.Conn

	mu sync.Mutex
	// locks are our copies of what holders have to close.
	locks []*os.File
}

// Start takes logind's name on the bus at an address, such as "unix:path=/run/bus".
func Start(address string) (*Logind, error) {
	bus, err := dbus.Connect(address)
	if err != nil {
		return nil, fmt.Errorf("connect to the bus %s: %w", address, err)
	}
	l := &Logind{bus: bus}
	if err := l.serve(); err != nil {
		return nil, errors.Join(err, bus.Close())
	}
	return l, nil
}

func (l *Logind) serve() error {
	properties := prop.Map{iface: {
		"InhibitDelayMaxUSec": {Value: uint64(longestDelay.Microseconds()), Emit: prop.EmitConst},
	}}
	if _, err := prop.Export(l.bus, path, properties); err != nil {
		return fmt.Errorf("offer logind's properties: %w", err)
	}
	if err := l.bus.ExportMethodTable(map[string]any{"Inhibit": l.inhibit}, path, iface); err != nil {
		return fmt.Errorf("offer logind's methods: %w", err)
	}
	reply, err := l.bus.RequestName(name, dbus.NameFlagDoNotQueue)
	if err == nil && reply != dbus.RequestNameReplyPrimaryOwner {
		err = errors.New("somebody else has it")
	}
	if err != nil {
		return fmt.Errorf("take the name %s: %w", name, err)
	}
	return nil
}

// inhibit is the method Inhibit: the caller gets a file, and its lock lasts until it closes that.
func (l *Logind) inhibit(what, _, _, mode string) (dbus.UnixFD, *dbus.Error) {
	if what != "shutdown" || mode != "delay" {
		return 0, dbus.MakeFailedError(fmt.Errorf("only what=shutdown and mode=delay are known here, not %s and %s", what, mode))
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	_ = ours.Close() // Nobody waits for the end of the lock.
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locks = append(l.locks, theirs)
	return dbus.UnixFD(theirs.Fd()), nil
}

// Locks returns how many locks were asked for so far.
func (l *Logind) Locks() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.locks)
}

// Announce tells everybody that the machine is about to go down or, with false, that it stays up after
// all.
func (l *Logind) Announce(down bool) error {
	if err := l.bus.Emit(path, iface+".PrepareForShutdown", down); err != nil {
		return fmt.Errorf("announce a shutdown: %w", err)
	}
	return nil
}

// Close leaves the bus.
func (l *Logind) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.bus.Close()
	for _, one := range l.locks {
		err = errors.Join(err, one.Close())
	}
	return err
}
