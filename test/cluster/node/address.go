// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// reservationPort is the UDP port whose open socket reserves a loopback address
	// among the agents of one machine.
	reservationPort = 7797
	// addressAttempts bounds the search for a free address.
	addressAttempts = 64
)

// loopback is the range in which Linux lets everybody listen on any address.
var loopback = netip.MustParsePrefix("127.0.0.0/8")

// addressPool gives each Pod its own address in 127.0.0.0/8.
type addressPool struct {
	mu    sync.Mutex
	last  netip.Addr
	taken map[types.UID]reservation
}

type reservation struct {
	address netip.Addr
	socket  net.PacketConn
}

// newAddressPool creates a pool that assigns addresses from 127.a.b.1 on, with a and b
// taken from the seed, so that two clusters seldom collide.
func newAddressPool(seed uint32) *addressPool {
	start := netip.AddrFrom4([4]byte{127, byte(16 + seed%200), byte(seed >> 8), 0})
	return &addressPool{last: start, taken: map[types.UID]reservation{}}
}

// take returns the Pod's address: the one it has, else the one in its status if that is
// free, else the next free one.
func (a *addressPool) take(pod *corev1.Pod) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if has, ok := a.taken[pod.UID]; ok {
		return has.address.String(), nil
	}
	if former, err := netip.ParseAddr(pod.Status.PodIP); err == nil && loopback.Contains(former) {
		if a.reserve(pod, former) == nil {
			return former.String(), nil
		}
	}
	var err error
	for range addressAttempts {
		a.last = following(a.last)
		if err = a.reserve(pod, a.last); err == nil {
			return a.last.String(), nil
		}
	}
	return "", fmt.Errorf("no free address after %d tries, last %s (a program that listens on a container port on all addresses has to end first): %w",
		addressAttempts, a.last, err)
}

func (a *addressPool) release(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if has, ok := a.taken[pod]; ok {
		_ = has.socket.Close() // nothing to be done about an error
		delete(a.taken, pod)
	}
}

func (a *addressPool) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for pod, has := range a.taken {
		_ = has.socket.Close()
		delete(a.taken, pod)
	}
}

// reserve reserves an address if the Pod's containers can listen on it.
func (a *addressPool) reserve(pod *corev1.Pod, address netip.Addr) error {
	var config net.ListenConfig
	socket, err := config.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(address, reservationPort).String())
	if err != nil {
		return err
	}
	for _, port := range tcpPorts(pod) {
		listener, err := config.Listen(context.Background(), "tcp", net.JoinHostPort(address.String(), strconv.Itoa(int(port))))
		switch {
		case err == nil:
			_ = listener.Close()
		case errors.Is(err, syscall.EADDRINUSE):
			return errors.Join(err, socket.Close())
		}
	}
	a.taken[pod.UID] = reservation{address: address, socket: socket}
	return nil
}

// tcpPorts are the ports that the Pod's containers are expected to listen on.
func tcpPorts(pod *corev1.Pod) []int32 {
	var ports []int32
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, port := range containers[i].Ports {
				if port.Protocol == corev1.ProtocolTCP || port.Protocol == "" {
					ports = append(ports, port.ContainerPort)
				}
			}
		}
	}
	return ports
}

// following is the next address that a Pod may have: not x.x.x.0 or x.x.x.255, and not
// in 127.0.0.0/16, which other programs use.
func following(address netip.Addr) netip.Addr {
	for {
		address = address.Next()
		octets := address.As4()
		switch {
		case octets[0] != 127:
			address = netip.AddrFrom4([4]byte{127, 1, 0, 0})
		case octets[3] != 0 && octets[3] != 255:
			return address
		}
	}
}
