// SPDX-License-Identifier: Apache-2.0

// Package ownnet plays a test in a network of its own, where a whole prefix of addresses leads to this machine. Pods
// that are processes have addresses there that are not those of the loopback interface: some programs register no
// loopback address, and Usher asks no Pod that has one.
package ownnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// insideEnv is the environment variable with the name of the test that the process plays.
const insideEnv = "USHER_OWN_NETWORK"

// Prefix returns the addresses of which each leads to this machine in such a network.
func Prefix() netip.Prefix { return netip.MustParsePrefix("10.99.0.0/16") }

// Enter plays a test in a process with a network of its own, and reports whether this is that process. Elsewhere it
// returns when the test has been played; the test fails if it has failed there. Inside there is the loopback interface
// and no way out: prepare, which is called outside before, gets what the test needs from elsewhere. It takes Linux, and
// root or user namespaces. The test must be no part of another one.
func Enter(t *testing.T, prepare func()) (inside bool) {
	t.Helper()
	if os.Getenv(insideEnv) == t.Name() {
		if err := open(); err != nil {
			t.Fatalf("prepare the test's own network: %v", err)
		}
		return true
	}
	prepare()
	if err := play(t); err != nil {
		t.Errorf("in a network of its own: %v", err)
	}
	return false
}

// play plays this test alone, in new namespaces.
func play(t *testing.T) error {
	// Pdeathsig fires when the forking thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return command(t).Run()
}

// command is the process that plays it.
func command(t *testing.T) *exec.Cmd {
	// The outer process keeps go test's record of what the test has read.
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(arg string) bool {
		return strings.HasPrefix(arg, "-test.testlogfile")
	})
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", append(args, "-test.run=^"+t.Name()+"$")...)
	cmd.Env = append(os.Environ(), insideEnv+"="+t.Name())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// open makes the addresses lead here.
func open() error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return fmt.Errorf("turn on the loopback interface: %w", err)
	}
	prefix := Prefix()
	err = netlink.RouteAdd(&netlink.Route{
		LinkIndex: loopback.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
		Dst: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())},
	})
	if err != nil {
		return fmt.Errorf("route %s to the loopback interface: %w", prefix, err)
	}
	return nil
}
