// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"cmp"
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Bounds of the guard's server. Any host that reaches the port may open connections, and must not use
// up what API servers need. Of these bounds, controller-runtime's server has only the time for headers.
const (
	// maxConnections are open at a time. API servers have a few each: requests share them.
	maxConnections = 256
	// maxStreams is how many requests share one connection. An API server with more opens another one.
	maxStreams = 100
	// maxHeader is the longest header, in bytes; maxFrame the longest frame of HTTP/2, and maxUnread
	// how much a client may send before the guard reads it.
	maxHeader = 16 << 10
	maxFrame  = 16 << 10
	maxUnread = 64 << 10
	// Times for TLS with a request's header, for the whole request, and for a connection without any.
	headerTime = 5 * time.Second
	readTime   = 10 * time.Second
	idleTime   = 90 * time.Second
	// endTime is how long the guard still answers when it shuts down.
	endTime = time.Minute
)

// frontend serves a handler over TLS, within bounds.
type frontend struct {
	port     int
	tls      *tls.Config
	handler  http.Handler
	clients  Clients
	outlives Outlives
	// serves means that it listens.
	serves atomic.Bool
}

// Outlives lets the guard answer longer than its manager runs: API servers let a deletion pass if nobody answers. The
// zero value ends with the manager.
type Outlives struct {
	// Until is done when the guard is to take no more reviews.
	Until context.Context
	// Serving waits until it has answered all.
	Serving *sync.WaitGroup
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*frontend) NeedLeaderElection() bool { return false }

// ready is a check of /readyz. It opens no connection of its own: a flood could keep that from being
// served, the replica would not be ready, and Pods would no longer be drained.
func (s *frontend) ready(*http.Request) error {
	if !s.serves.Load() {
		return errors.New("the guard does not serve yet")
	}
	_, err := s.tls.GetCertificate(nil)
	return errors.Join(err, s.clients.Check())
}

// Start implements manager.Runnable.
func (s *frontend) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(s.port)))
	if err != nil {
		return fmt.Errorf("serve the guard: %w; choose another --guard-port", err)
	}
	return s.outlive(ctx, newCrowd(listener, maxConnections))
}

// outlive serves while ctx lasts, and goes on in the background as s.outlives says.
func (s *frontend) outlive(ctx context.Context, listener *crowd) error {
	if s.outlives.Until == nil {
		return s.serve(ctx, listener)
	}
	ended := make(chan error, 1)
	s.outlives.Serving.Go(func() { ended <- s.serve(s.outlives.Until, listener) })
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

// serve serves until ctx ends, and then answers the requests that it has.
func (s *frontend) serve(ctx context.Context, listener *crowd) error {
	config := s.tls.Clone()
	config.GetCertificate = oneByOne(s.tls.GetCertificate)
	config.NextProtos = []string{"h2", "http/1.1"}
	s.clients.demand(config)
	served := &http.Server{
		Handler: s.handler, TLSConfig: config,
		BaseContext:    func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ConnContext:    withGuest,
		MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTime, ReadTimeout: readTime, WriteTimeout: readTime + maxAnswer, IdleTimeout: idleTime,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReadFrameSize: maxFrame,
			MaxReceiveBufferPerConnection: maxUnread, MaxReceiveBufferPerStream: maxUnread,
		},
		// The server would log a line for each dropped connection.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	ended := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		ended <- served.Shutdown(ctx)
	})
	defer stop()
	s.serves.Store(true)
	if err := served.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the guard: %w", err)
	}
	return <-ended
}

// liveClient reads and writes past the cache and past the rate that the controllers share: the door
// bounds how many reviews cause requests, so that a flood of those does not hold up the controllers.
func liveClient(mgr ctrl.Manager, config *rest.Config) (client.Client, error) {
	config = rest.CopyConfig(cmp.Or(config, mgr.GetConfig()))
	config.QPS = -1
	live, err := client.New(config, client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("make the guard's client: %w", err)
	}
	return live, nil
}

// oneByOne makes TLS sign for one connection at a time. The signature is most of a handshake's cost, so
// a flood of connections takes one processor at most. Nothing is signed for a connection that has been
// closed.
func oneByOne(get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	turn := make(chan struct{}, 1)
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		found, err := get(hello)
		if err != nil {
			return nil, err
		}
		from, isGuest := hello.Conn.(*guest)
		key, signs := found.PrivateKey.(crypto.Signer)
		if !isGuest || !signs {
			return found, nil
		}
		inTurn := *found
		inTurn.PrivateKey = &signer{key, turn, from.gone}
		return &inTurn, nil
	}
}

// signer waits for other signatures and then signs, unless its connection is closed before.
type signer struct {
	crypto.Signer
	turn chan struct{}
	gone <-chan struct{}
}

// Sign implements crypto.Signer.
func (s *signer) Sign(random io.Reader, digest []byte, options crypto.SignerOpts) ([]byte, error) {
	select {
	case <-s.gone:
		return nil, net.ErrClosed
	case s.turn <- struct{}{}:
	}
	defer func() { <-s.turn }()
	return s.Signer.Sign(random, digest, options)
}
