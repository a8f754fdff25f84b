// SPDX-License-Identifier: Apache-2.0

package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
)

// sessionTimeout is how long a server keeps our session, which holds nothing. A
// connection that is silent for two thirds of it is closed.
const sessionTimeout = 10 * time.Second

var errClosed = errors.New("the connection was closed")

// dialer keeps one connection. The client would reconnect by itself and then send what
// it could not send before: a change that its caller has given up on. So each of the
// client's connections is used only once.
type dialer struct {
	servers []string
	auth    []byte
	network network

	// turn is held while making a connection.
	turn chan struct{}

	mu     sync.Mutex
	conn   *zk.Conn
	closed bool
}

// network makes a connection: a net.Dialer or a tls.Dialer.
type network interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

func newDialer(servers []string, auth []byte) *dialer {
	return &dialer{servers: zk.FormatServers(servers), auth: auth, network: &net.Dialer{}, turn: make(chan struct{}, 1)}
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
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
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

// connect tries each server once.
func (d *dialer) connect(ctx context.Context) (*zk.Conn, error) {
	l := &link{network: d.network, ready: make(chan struct{}), spent: make(chan struct{}), lost: make(chan struct{})}
	conn, _, err := zk.Connect(d.servers, sessionTimeout, zk.WithHostProvider(l), zk.WithDialer(l.dial),
		zk.WithEventCallback(l.event), zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	if err := d.begin(ctx, conn, l); err != nil {
		go conn.Close()
		return nil, err
	}
	go func() {
		<-l.lost
		d.drop(conn)
	}()
	return conn, nil
}

// begin waits for a session, logs in, and keeps the connection.
func (d *dialer) begin(ctx context.Context, conn *zk.Conn, l *link) error {
	select {
	case <-l.ready:
	case <-l.spent:
		return l.reason()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", context.Cause(ctx), l.reason())
	}
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

// link watches one of the client's connections.
type link struct {
	// ready is closed when a session begins, spent when no server accepted one, and
	// lost when the connection of a session has ended.
	ready, spent, lost chan struct{}
	network            network

	mu      sync.Mutex
	servers []string
	next    int
	last    error
}

var _ zk.HostProvider = (*link)(nil)

// Init implements zk.HostProvider. Names are resolved when they are dialled.
func (l *link) Init(servers []string) error {
	l.servers = servers
	return nil
}

// Len implements zk.HostProvider.
func (l *link) Len() int { return len(l.servers) }

// Next implements zk.HostProvider.
func (l *link) Next() (server string, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	server, again = l.servers[l.next%len(l.servers)], l.next >= len(l.servers)
	l.next++
	if again && !isClosed(l.ready) {
		shut(l.spent)
	}
	return server, again
}

// Connected implements zk.HostProvider.
func (l *link) Connected() {}

func (l *link) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	if isClosed(l.ready) {
		return nil, errClosed
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := l.network.DialContext(ctx, network, address)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.last = err
		return nil, err
	}
	return &frames{Conn: conn}, nil
}

func (l *link) event(e zk.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case e.State == zk.StateHasSession:
		shut(l.ready)
	case e.Type == zk.EventSession && e.State != zk.StateConnected && isClosed(l.ready):
		shut(l.lost)
	}
}

// reason returns why there is no session.
func (l *link) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.last, errors.New("no server gave a session: they may be without a leader, or not be ZooKeeper"))
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// shut closes a channel unless it is closed already. The caller must hold the lock.
func shut(c chan struct{}) {
	if !isClosed(c) {
		close(c)
	}
}

// silent discards the client's log, because errors are returned.
type silent struct{}

// Printf implements zk.Logger.
func (silent) Printf(string, ...any) {}

// typed marks an error. An error not known to be permanent is transient, because a
// needless retry is the safer mistake.
func typed(err error) error {
	for _, permanent := range []error{
		registry.ErrPermanent, zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL, zk.ErrBadArguments, zk.ErrInvalidPath, zk.ErrAPIError,
	} {
		if errors.Is(err, permanent) {
			return registry.Permanent(explain(err))
		}
	}
	return registry.Transient(err)
}

func explain(err error) error {
	if errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrInvalidACL) {
		return fmt.Errorf("%w: check %s and %s of the credentials Secret, and the node's ACL", err, credentials.KeyUsername, credentials.KeyPassword)
	}
	return err
}
