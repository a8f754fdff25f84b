// SPDX-License-Identifier: Apache-2.0

// Package logind stands in for systemd-logind, as far as a kubelet uses it: it gives out locks that
// delay a shutdown, and announces a shutdown and its end.
//
// It is no logind: no machine goes down, and nobody ends who holds a lock for too long.
package logind

import (
	"context"
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

	mu    sync.Mutex
	locks []*lock
}

// lock delays a shutdown until its holder has closed its end of a pipe.
type lock struct {
	// theirs is our copy of the holder's end; nil once it is closed.
	theirs   *os.File
	released chan struct{}
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

// inhibit is the method Inhibit: the caller gets one end of a pipe, and its lock lasts until that is
// closed.
func (l *Logind) inhibit(what, _, _, mode string) (dbus.UnixFD, *dbus.Error) {
	if what != "shutdown" || mode != "delay" {
		return 0, dbus.MakeFailedError(fmt.Errorf("only what=shutdown and mode=delay are known here, not %s and %s", what, mode))
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	made := &lock{theirs: theirs, released: make(chan struct{})}
	go func() {
		_, _ = ours.Read(make([]byte, 1)) // Nobody writes: it returns when all copies of the other end are closed.
		_ = ours.Close()
		close(made.released)
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locks = append(l.locks, made)
	return dbus.UnixFD(theirs.Fd()), nil
}

// Held reports whether somebody has asked for a lock and not released it.
func (l *Logind) Held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.locks {
		select {
		case <-one.released:
		default:
			return true
		}
	}
	return false
}

// Announce tells everybody that the machine is about to go down or, with false, that it stays up after
// all.
func (l *Logind) Announce(down bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Whoever waits for an announcement has received its end long ago.
	for _, one := range l.locks {
		if one.theirs != nil {
			_ = one.theirs.Close() // Only the holder's copy counts.
			one.theirs = nil
		}
	}
	if err := l.bus.Emit(path, iface+".PrepareForShutdown", down); err != nil {
		return fmt.Errorf("announce a shutdown: %w", err)
	}
	return nil
}

// AwaitRelease waits until no lock that was given out before the call is held.
func (l *Logind) AwaitRelease(ctx context.Context) error {
	l.mu.Lock()
	locks := l.locks
	l.mu.Unlock()
	for _, one := range locks {
		select {
		case <-one.released:
		case <-ctx.Done():
			return fmt.Errorf("await the release of a lock that delays the shutdown: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Close leaves the bus.
func (l *Logind) Close() error { return l.bus.Close() }
