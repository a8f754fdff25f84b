// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// reservationPort is the UDP port whose open socket reserves a loopback address
	// among the agents of one machine.
	reservationPort = 7797
	// addressAttempts bounds the search for a free address.
	addressAttempts = 64
)

// addressPool gives each Pod its own address in 127.0.0.0/8, where Linux lets everybody
// listen on any address.
type addressPool struct {
	mu    sync.Mutex
	last  netip.Addr
	taken map[types.UID]net.PacketConn
}

// newAddressPool creates a pool that assigns addresses from 127.a.b.1 on, with a and b
// taken from the seed, so that two clusters seldom collide.
func newAddressPool(seed uint32) *addressPool {
	start := netip.AddrFrom4([4]byte{127, byte(16 + seed%200), byte(seed >> 8), 0})
	return &addressPool{last: start, taken: map[types.UID]net.PacketConn{}}
}

// take returns an address that no other Pod on this machine has.
func (a *addressPool) take(pod types.UID) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	for range addressAttempts {
		a.last = a.last.Next()
		var config net.ListenConfig
		var socket net.PacketConn
		socket, err = config.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(a.last, reservationPort).String())
		if err == nil {
			a.taken[pod] = socket
			return a.last.String(), nil
		}
	}
	return "", fmt.Errorf("no free address after %d tries, last %s: %w", addressAttempts, a.last, err)
}

func (a *addressPool) release(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if socket := a.taken[pod]; socket != nil {
		_ = socket.Close() // nothing to be done about an error
		delete(a.taken, pod)
	}
}
