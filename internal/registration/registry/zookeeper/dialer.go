// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"cmp"
	"context"
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
	conn   *connection
	closed bool
}

// connection is one that the client uses, and its packets.
type connection struct {
	*zk.Conn
	frames *frames
}

// end closes the connection. The client says goodbye and waits for the answer, which may
// never come: for as long as the server has said that a session lasts.
func (c *connection) end() {
	c.Close()
	_ = c.frames.Close()
}

// run calls op with a connection, and types its error. If the context ends, run closes
// the connection: the client has no other way to end a call.
func (d *dialer) run(ctx context.Context, op func(*zk.Conn) error) error {
	conn, err := d.connected(ctx)
	if err != nil {
		return typed(err)
	}
	stop := context.AfterFunc(ctx, func() { d.drop(conn) })
	err = op(conn.Conn)
	if why := conn.frames.why(); err != nil && why != nil {
		err = why // The client's error only says that the connection was closed.
	}
	if stop() || err == nil {
		return typed(err)
	}
	return registry.Transient(fmt.Errorf("%w: %w", context.Cause(ctx), err))
}

// connected returns the connection, which it makes on first use and after a loss.
func (d *dialer) connected(ctx context.Context) (*connection, error) {
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
func (d *dialer) connect(ctx context.Context) (*connection, error) {
	why := errNoSession
	for _, n := range rand.Perm(len(d.servers)) {
		raw, err := d.dial(ctx, "tcp", d.servers[n])
		if err != nil {
			why = err
			continue
		}
		conn, events, err := session(ctx, raw)
		if err != nil {
			if !errors.Is(err, errNoSession) { // Another server's error may say more.
				why = err
			}
			continue
		}
		if err := d.keep(ctx, conn); err != nil {
			go conn.end()
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

// session begins a session on a connection, which the client does not replace when it ends.
func session(ctx context.Context, raw net.Conn) (*connection, <-chan zk.Event, error) {
	c := &connection{frames: &frames{Conn: raw}}
	used := false
	dial := func(string, string, time.Duration) (net.Conn, error) {
		if used {
			return nil, errClosed
		}
		used = true
		return c.frames, nil
	}
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })()
	var events <-chan zk.Event
	var err error
	c.Conn, events, err = zk.Connect([]string{raw.RemoteAddr().String()}, sessionTimeout, zk.WithDialer(dial), zk.WithLogger(silent))
	if err != nil {
		_ = raw.Close()
		return nil, nil, err
	}
	if await(events, zk.StateHasSession, zk.StateDisconnected) == zk.StateHasSession {
		return c, events, nil
	}
	_ = raw.Close()
	go c.Close()
	return nil, nil, cmp.Or(c.frames.why(), errNoSession)
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
func (d *dialer) keep(ctx context.Context, conn *connection) error {
	if len(d.auth) > 0 {
		stop := context.AfterFunc(ctx, conn.Close)
		err := conn.AddAuth("digest", d.auth)
		stop()
		if err != nil {
			err = cmp.Or(conn.frames.why(), err)
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
func (d *dialer) drop(conn *connection) {
	d.mu.Lock()
	if d.conn == conn {
		d.conn = nil
	}
	d.mu.Unlock()
	conn.end()
}

func (d *dialer) close() {
	d.mu.Lock()
	conn := d.conn
	d.conn, d.closed = nil, true
	d.mu.Unlock()
	if conn != nil {
		conn.end()
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
