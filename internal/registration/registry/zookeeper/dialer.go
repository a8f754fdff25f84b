// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sync/semaphore"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
)

const (
	// sessionTimeout is how long a server keeps our session, which holds nothing. A
	// connection that is silent for two thirds of it is closed.
	sessionTimeout = 10 * time.Second
	// dialTimeout limits the connection to one server of several.
	dialTimeout = time.Second
)

var errClosed = errors.New("the connection was closed")
var errNoSession = errors.New("no server gave a session: they may be without a leader, or not be ZooKeeper")

// dialer keeps one connection. The client would reconnect by itself and then send what
// it could not send before: a change that its caller has given up on. So each of the
// client's connections is used only once.
type dialer struct {
	servers []string
	auth    []byte
	// dial makes a connection to a server, within dialTimeout.
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	// turn is held while making a connection.
	turn *semaphore.Weighted

	mu     sync.Mutex
	conn   *zk.Conn
	closed bool
}

// run calls op with a connection, and types its error. If the context ends, run closes
// the connection: the client has no other way to end a call.
func (d *dialer) run(ctx context.Context, op func(*zk.Conn) error) error {
	conn, err := d.connected(ctx)
	if err != nil {
		return typed(err)
	}
	stop := context.AfterFunc(ctx, func() { d.drop(conn) })
	err = op(conn)
	if stop() || err == nil {
		return typed(err)
	}
	return registry.Transient(fmt.Errorf("%w: %w", context.Cause(ctx), err))
}

// connected returns the connection, which it makes on first use and after a loss.
func (d *dialer) connected(ctx context.Context) (*zk.Conn, error) {
	if err := d.turn.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	defer d.turn.Release(1)
	d.mu.Lock()
	conn, closed := d.conn, d.closed
	d.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case conn != nil:
		return conn, nil
	}
	return d.connect(ctx)
}

// connect tries each server once, in any order.
func (d *dialer) connect(ctx context.Context) (*zk.Conn, error) {
	why := errNoSession
	for _, n := range rand.Perm(len(d.servers)) {
		raw, err := d.dial(ctx, "tcp", d.servers[n])
		if err != nil {
			why = err
			continue
		}
		conn, events := session(ctx, raw)
		if conn == nil {
			continue
		}
		if err := d.keep(ctx, conn); err != nil {
			go conn.Close()
			return nil, err
		}
		go func() {
			await(events, zk.StateDisconnected)
			d.drop(conn)
		}()
		return conn, nil
	}
	if ctx.Err() != nil {
		why = fmt.Errorf("%w: %w", context.Cause(ctx), why)
	}
	return nil, why
}

// session begins a session on a connection, which the client does not replace when it ends. It
// returns nil if the server gives none.
func session(ctx context.Context, raw net.Conn) (*zk.Conn, <-chan zk.Event) {
	used := false
	dial := func(string, string, time.Duration) (net.Conn, error) {
		if used {
			return nil, errClosed
		}
		used = true
		return &frames{Conn: raw}, nil
	}
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })()
	conn, events, err := zk.Connect([]string{raw.RemoteAddr().String()}, sessionTimeout, zk.WithDialer(dial), zk.WithLogger(silent))
	if err == nil && await(events, zk.StateHasSession, zk.StateDisconnected) == zk.StateHasSession {
		return conn, events
	}
	_ = raw.Close()
	if err == nil {
		go conn.Close()
	}
	return nil, nil
}

// await waits until the client is in one of the states, or is closed.
func await(events <-chan zk.Event, states ...zk.State) zk.State {
	for e := range events {
		if slices.Contains(states, e.State) {
			return e.State
		}
	}
	return zk.StateDisconnected
}

// keep logs in, and keeps the connection.
func (d *dialer) keep(ctx context.Context, conn *zk.Conn) error {
	if len(d.auth) > 0 {
		stop := context.AfterFunc(ctx, conn.Close)
		err := conn.AddAuth("digest", d.auth)
		stop()
		if err != nil {
			return fmt.Errorf("log in: %w", errors.Join(context.Cause(ctx), err))
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	d.conn = conn
	return nil
}

// drop closes and forgets the connection. That ends the calls that use it.
func (d *dialer) drop(conn *zk.Conn) {
	d.mu.Lock()
	if d.conn == conn {
		d.conn = nil
	}
	d.mu.Unlock()
	conn.Close()
}

func (d *dialer) close() {
	d.mu.Lock()
	conn := d.conn
	d.conn, d.closed = nil, true
	d.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// silent discards the client's log, because errors are returned.
var silent = log.New(io.Discard, "", 0)

// typed marks an error. An error not known to be permanent is transient, because a
// needless retry is the safer mistake.
func typed(err error) error {
	if errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrInvalidACL) {
		return registry.Permanent(fmt.Errorf("%w: check %s and %s of the credentials Secret, and the node's ACL",
			err, credentials.KeyUsername, credentials.KeyPassword))
	}
	for _, permanent := range []error{
		registry.ErrPermanent, zk.ErrAuthFailed, zk.ErrBadArguments, zk.ErrInvalidPath, zk.ErrAPIError, zk.ErrNotEmpty,
	} {
		if errors.Is(err, permanent) {
			return registry.Permanent(err)
		}
	}
	return registry.Transient(err)
}

const (
	// headerBytes is the size of the length field before each packet.
	headerBytes = 4
	// minPacket is the server's shortest packet, a reply without content.
	minPacket = 16
	// maxPacket is more than servers send by default, 1 MiB. A connection reads one at a time.
	maxPacket = 8 << 20
)

// frames is a connection that ends at a packet with an impossible length. The client
// trusts the length: it would panic at a short one, and allocate gigabytes if something
// other than ZooKeeper answers.
type frames struct {
	net.Conn
	packet io.Reader // The current one with its length field, nil before the first.
}

// Read implements io.Reader. The client reads from one goroutine at a time.
func (f *frames) Read(p []byte) (int, error) {
	for {
		if f.packet != nil {
			if n, err := f.packet.Read(p); n > 0 || !errors.Is(err, io.EOF) {
				return n, err
			}
		}
		header := make([]byte, headerBytes)
		if _, err := io.ReadFull(f.Conn, header); err != nil {
			return 0, err
		}
		length := binary.BigEndian.Uint32(header)
		if length < minPacket || length > maxPacket {
			return 0, fmt.Errorf("a packet of %d bytes: this is no ZooKeeper, or the service has too many entries", length)
		}
		f.packet = io.MultiReader(bytes.NewReader(header), io.LimitReader(f.Conn, int64(length)))
	}
}
