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

// crowd is a listener with a bound on its connections. A new one is always let in: when there are too
// many, another one is closed. So connections that say nothing keep no API server out.
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
	// proven means that it has shown the path.
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
		_ = leaves.Close() // whoever it was gets to know
	}
	return g, nil
}

// enter lets a guest in, and returns who has to leave for it; nil if there is room.
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

// leaves chooses who has to leave. Of those who have not shown the path, or of all if there are none,
// it is the oldest one of the host that has most. So whoever opens connections drives out its own.
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

// withGuest keeps the guest with the requests of its connection.
func withGuest(ctx context.Context, conn net.Conn) context.Context {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	return context.WithValue(ctx, guestKey{}, conn)
}

// prove notes that the connection of a request has shown the path.
func prove(ctx context.Context) {
	if g, ok := ctx.Value(guestKey{}).(*guest); ok {
		g.proven.Store(true)
	}
}
