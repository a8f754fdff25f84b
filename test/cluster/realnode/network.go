// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bridge is the node's own interface. A bridge without ports works like a dummy
// interface, and every kernel that can run Pods has one; the kubelet refuses the
// loopback interface.
const bridge = "usher0"

// makeNetwork assigns the node's addresses in the sandbox.
func makeNetwork() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make the node's network: %w", err)
	}
	err = errors.Join(
		up(socket, "lo"),
		addBridge(socket),
		address(socket, bridge, NodeAddress), up(socket, bridge),
		// The label makes it a second address instead of replacing the first one.
		address(socket, bridge+":1", serviceAddress),
		unix.Close(socket),
	)
	if err != nil {
		return fmt.Errorf("make the node's network: %w", err)
	}
	return nil
}

func addBridge(socket int) error {
	name, err := unix.BytePtrFromString(bridge)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCBRADDBR, uintptr(unsafe.Pointer(name)))
	if errno != 0 {
		return fmt.Errorf("add a bridge (the kernel needs the module bridge): %w", errno)
	}
	return nil
}

// address assigns an interface an address in a network of its own.
func address(socket int, name, text string) error {
	if err := setAddress(socket, name, unix.SIOCSIFADDR, text); err != nil {
		return err
	}
	return setAddress(socket, name, unix.SIOCSIFNETMASK, "255.255.255.255")
}

func setAddress(socket int, name string, request uint, text string) error {
	at, err := netip.ParseAddr(text)
	if err != nil {
		return err
	}
	ifreq, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := ifreq.SetInet4Addr(at.AsSlice()); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, request, ifreq); err != nil {
		return fmt.Errorf("address %s of %s: %w", text, name, err)
	}
	return nil
}

func up(socket int, name string) error {
	ifreq, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifreq.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, ifreq); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	return nil
}
