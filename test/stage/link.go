// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

const (
	// pieceSize is how much a link passes on at once, at most.
	pieceSize = 32 << 10
	// pieces is how many pieces may be under way in one direction of a connection, so that distance
	// costs time and no throughput.
	pieces = 4096
)

// Link stands between TCP clients and their server, and can make that slow or break it.
type Link struct {
	ready    func(target int) bool
	listener net.Listener
	targets  []string

	mu    sync.Mutex
	delay time.Duration
	down  bool
	open  map[net.Conn]bool
}

// NewLink listens on loopback as long as the stage lives. A connection goes to the first of the
// targets, host:port, that accepts it. Unless ready is nil, only targets for which it returns true are
// tried; it gets their index.
func (s *Stage) NewLink(ctx context.Context, ready func(target int) bool, targets ...string) (*Link, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen in place of %s: %w", strings.Join(targets, ", "), err)
	}
	l := &Link{ready: ready, listener: listener, targets: targets, open: map[net.Conn]bool{}}
	s.AtEnd(func(context.Context) error { l.Down(true); return listener.Close() })
	go l.serve(context.WithoutCancel(ctx))
	return l, nil
}

// Address returns host:port, for clients.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Slow delays all data from now on by half a round trip in each direction; 0 ends that.
func (l *Link) Slow(roundTrip time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = roundTrip / 2
}

// Cut closes all connections. Clients may connect again.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.open {
		_ = conn.Close() // Unsent data is lost, as intended.
	}
	clear(l.open)
}

// Down closes all connections, and new ones at once, until it is called with false.
func (l *Link) Down(down bool) {
	l.mu.Lock()
	l.down = down
	l.mu.Unlock()
	if down {
		l.Cut()
	}
}

func (l *Link) serve(ctx context.Context) {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		go l.connect(ctx, near)
	}
}

// connect connects a client. If that fails, the client retries.
func (l *Link) connect(ctx context.Context, near net.Conn) {
	far, err := l.dial(ctx)
	if err != nil || !l.admit(near, far) {
		_ = near.Close() // The client sees only that.
		if far != nil {
			_ = far.Close()
		}
		return
	}
	end := sync.OnceFunc(func() {
		_ = errors.Join(near.Close(), far.Close()) // as the other side has closed
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, near)
		delete(l.open, far)
	})
	go l.carry(far, near, end)
	go l.carry(near, far, end)
}

func (l *Link) dial(ctx context.Context) (net.Conn, error) {
	for i, target := range l.targets {
		if l.ready != nil && !l.ready(i) {
			continue
		}
		if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target); err == nil {
			return conn, nil
		}
	}
	return nil, errors.New("no target takes a connection")
}

// admit keeps the connections, unless the link is down.
func (l *Link) admit(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		if !l.down {
			l.open[conn] = true
		}
	}
	return !l.down
}

// carry passes on data, each piece after the delay, until a side closes.
func (l *Link) carry(to, from net.Conn, end func()) {
	type piece struct {
		due  time.Time
		data []byte
	}
	under := make(chan piece, pieces)
	go func() {
		defer close(under)
		buffer := make([]byte, pieceSize)
		for {
			n, err := from.Read(buffer)
			l.mu.Lock()
			due := time.Now().Add(l.delay)
			l.mu.Unlock()
			under <- piece{due: due, data: bytes.Clone(buffer[:n])}
			if err != nil {
				return
			}
		}
	}()
	for p := range under {
		<-time.After(time.Until(p.due)) // The delay is what the link is for.
		if _, err := to.Write(p.data); err != nil {
			end() // The reader fails then too; its data has no receiver.
		}
	}
	end()
}

// Through writes a kubeconfig that reaches the server of another one through a link.
func (s *Stage) Through(ctx context.Context, kubeconfig, path string) (*Link, error) {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(s.Cluster.Server())
	if err != nil {
		return nil, err
	}
	l, err := s.NewLink(ctx, nil, server.Host)
	if err != nil {
		return nil, err
	}
	for _, one := range config.Clusters {
		one.Server = "https://" + l.Address()
	}
	return l, clientcmd.WriteToFile(*config, path)
}
