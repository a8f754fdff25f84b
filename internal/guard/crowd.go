// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/usher-dev/usher/internal/access"
)

// crowd is a listener with a bound on its connections. A new connection is always accepted: if there
// are too many, another one is closed. So idle connections keep no API server out.
type crowd struct {
	net.Listener
	most int

	mu sync.Mutex
	// guests are the open connections, the oldest first.
	guests []*guest
}

func newCrowd(l net.Listener, most int) *crowd { return &crowd{Listener: l, most: most} }

// guest is a connection.
type guest struct {
	net.Conn
	crowd *crowd
	// from is the host at the other end.
	from string
	// proven means that a request on it had the secret path.
	proven atomic.Bool
	// gone is closed with the connection.
	gone  chan struct{}
	leave sync.Once
}

// Accept implements net.Listener.
func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &guest{Conn: conn, crowd: c, from: access.NetworkOf(conn.RemoteAddr().String()), gone: make(chan struct{})}
	if leaves := c.enter(g); leaves != nil {
		_ = leaves.Close() // closing it informs its client
	}
	return g, nil
}

// enter adds a guest, and returns the guest that has to leave for it; nil if there is room.
func (c *crowd) enter(g *guest) *guest {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.guests
	c.guests = append(c.guests, g)
	if len(before) < c.most {
		return nil
	}
	return leaves(before)
}

// leaves chooses the guest that has to leave: among those that have not shown the path, or among all if
// there are none, the oldest one of the host that has most. So a host with many connections drives out
// its own.
func leaves(guests []*guest) *guest {
	strangers := slices.DeleteFunc(slices.Clone(guests), func(g *guest) bool { return g.proven.Load() })
	if len(strangers) > 0 {
		guests = strangers
	}
	count := map[string]int{}
	for _, g := range guests {
		count[g.from]++
	}
	return slices.MaxFunc(guests, func(a, b *guest) int { return cmp.Compare(count[a.from], count[b.from]) })
}

// Close implements net.Conn.
func (g *guest) Close() error {
	g.leave.Do(func() {
		close(g.gone)
		g.crowd.mu.Lock()
		defer g.crowd.mu.Unlock()
		g.crowd.guests = slices.DeleteFunc(g.crowd.guests, func(other *guest) bool { return other == g })
	})
	return g.Conn.Close()
}

type guestKey struct{}

// withGuest stores the guest in the context of its connection's requests.
func withGuest(ctx context.Context, conn net.Conn) context.Context {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	return context.WithValue(ctx, guestKey{}, conn)
}

// prove records that the connection of a request has shown the path.
func prove(ctx context.Context) {
	if g, ok := ctx.Value(guestKey{}).(*guest); ok {
		g.proven.Store(true)
	}
}
