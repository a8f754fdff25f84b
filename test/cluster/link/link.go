// SPDX-License-Identifier: Apache-2.0

// Package link stands between TCP clients and their servers on loopback: it balances, delays, holds back and
// cuts their connections.
package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	// pieceSize is how much a link passes on at once, at most.
	pieceSize = 32 << 10
	// pieces is how many pieces may be under way in one direction of a connection, so that distance
	// costs time and no throughput.
	pieces = 4096
)

// Link stands between TCP clients and their servers. Its methods are safe for concurrent use.
type Link struct {
	listener net.Listener
	targets  []string
	options  Options

	mu    sync.Mutex
	delay time.Duration
	down  bool
	pairs map[*pair]bool
	held  map[int]chan struct{} // by target; closed when it is held back no more
	next  int                   // of the targets, for Rotate
}

// Options configures Listen. The zero value tries all targets in their order.
type Options struct {
	// Ready reports whether a target, by its index, may get a new connection; nil: each may.
	Ready func(target int) bool
	// Rotate begins with another target for each connection.
	Rotate bool
	// Sender finds in the first bytes of a connection who its client is; nil: nobody asks.
	Sender func(first []byte) string
	// Delay returns how long data of a sender's connection takes in one direction, in addition to Slow; nil: no time.
	Delay func(sender string) time.Duration
}

// pair is a client's connection and its server's.
type pair struct {
	near, far net.Conn
	target    int
	sender    string
}

func (p *pair) close() { _ = errors.Join(p.near.Close(), p.far.Close()) } // Unsent data is lost, as intended.

// Listen listens on a free port of loopback until Close. A connection goes to the first of the targets, host:port,
// that accepts it.
func Listen(ctx context.Context, o Options, targets ...string) (*Link, error) {
	return ListenOn(ctx, "127.0.0.1:0", o, targets...)
}

// ListenOn is Listen on an address.
func ListenOn(ctx context.Context, address string, o Options, targets ...string) (*Link, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen in place of %s: %w", strings.Join(targets, ", "), err)
	}
	l := &Link{listener: listener, targets: targets, options: o, pairs: map[*pair]bool{}, held: map[int]chan struct{}{}}
	go l.serve(context.WithoutCancel(ctx))
	return l, nil
}

// Address returns host:port, for clients.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Close cuts all connections and listens no more.
func (l *Link) Close() error {
	l.Down(true)
	for target := range l.targets {
		l.Hold(target, false)
	}
	return l.listener.Close()
}

// Slow delays all data from now on by half a round trip in each direction; 0 ends that.
func (l *Link) Slow(roundTrip time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = roundTrip / 2
}

// Cut closes all connections. Clients may connect again.
func (l *Link) Cut() { l.cut(func(*pair) bool { return true }) }

// CutTarget closes the connections to a target.
func (l *Link) CutTarget(target int) { l.cut(func(p *pair) bool { return p.target == target }) }

func (l *Link) cut(which func(*pair) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.pairs {
		if which(p) {
			p.close()
			delete(l.pairs, p)
		}
	}
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

// Hold holds back all data between clients and a target, as a network does that drops packets: nobody learns of it.
// With false the data moves on. New connections go to other targets meanwhile.
func (l *Link) Hold(target int, hold bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch held := l.held[target]; {
	case hold && held == nil:
		l.held[target] = make(chan struct{})
	case !hold && held != nil:
		close(held)
		delete(l.held, target)
	}
}

// holding returns the channel that is closed when a target is held back no more; nil if it is not held back.
func (l *Link) holding(target int) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[target]
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
	p, err := l.dial(ctx, near)
	if err != nil || !l.admit(p) {
		_ = near.Close() // The client sees only that.
		if p != nil {
			p.close()
		}
		return
	}
	end := sync.OnceFunc(func() {
		p.close() // as the other side has closed
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.pairs, p)
	})
	go l.carry(p, true, end)
	go l.carry(p, false, end)
}

// order returns the targets in the order in which they are tried.
func (l *Link) order() (order []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.options.Rotate {
		l.next++
	}
	for i := range l.targets {
		if target := (l.next + i) % len(l.targets); l.held[target] == nil {
			order = append(order, target)
		}
	}
	return order
}

func (l *Link) dial(ctx context.Context, near net.Conn) (*pair, error) {
	for _, target := range l.order() {
		if l.options.Ready != nil && !l.options.Ready(target) {
			continue
		}
		if far, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.targets[target]); err == nil {
			return &pair{near: near, far: far, target: target}, nil
		}
	}
	return nil, errors.New("no target takes a connection")
}

// admit keeps the connections, unless the link is down.
func (l *Link) admit(p *pair) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.down {
		l.pairs[p] = true
	}
	return !l.down
}

// due returns when data that a connection has now is to arrive.
func (l *Link) due(p *pair) time.Time {
	l.mu.Lock()
	delay, sender := l.delay, p.sender
	l.mu.Unlock()
	if l.options.Delay != nil {
		delay += l.options.Delay(sender)
	}
	return time.Now().Add(delay)
}

// heard learns from a client's first bytes who it is.
func (l *Link) heard(p *pair, first []byte) {
	if l.options.Sender == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.sender == "" {
		p.sender = l.options.Sender(first)
	}
}

// carry passes on data to the server or the client, each piece after the delay, until a side closes.
func (l *Link) carry(p *pair, toServer bool, end func()) {
	to, from := p.near, p.far
	if toServer {
		to, from = p.far, p.near
	}
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
			if toServer {
				l.heard(p, buffer[:n])
			}
			under <- piece{due: l.due(p), data: bytes.Clone(buffer[:n])}
			if err != nil {
				return
			}
		}
	}()
	for piece := range under {
		<-time.After(time.Until(piece.due)) // The delay is what the link is for.
		if held := l.holding(p.target); held != nil {
			<-held
		}
		if _, err := to.Write(piece.data); err != nil {
			end() // The reader fails then too; its data has no receiver.
		}
	}
	end()
}
