// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// greeter is a gRPC server with its entry.
type greeter struct {
	entry  registry.Entry
	server *grpc.Server
	hits   atomic.Int64
}

// slow is the metadata of a slow call.
const (
	slow     = "slow"
	callTime = 5 * time.Millisecond
	slowTime = 400 * time.Millisecond
)

// newGreeter listens on port, any if zero. A call takes some time, so that some are in
// flight when the server ends.
func newGreeter(t *testing.T, n int, port int32) *greeter {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(dialNet+strconv.Itoa(n), strconv.Itoa(int(port))))
	if err != nil {
		t.Fatal(err)
	}
	g := &greeter{entry: member(n)}
	g.entry.Address, g.entry.Port = entryNet+strconv.Itoa(n), int32(listener.Addr().(*net.TCPAddr).Port)
	g.server = grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			takes := callTime
			if len(metadata.ValueFromIncomingContext(ctx, slow)) > 0 {
				takes = slowTime
			}
			select {
			case <-time.After(takes):
			case <-ctx.Done():
			}
			g.hits.Add(1)
			return handler(ctx, request)
		}))
	grpc_health_v1.RegisterHealthServer(g.server, backend{})
	go func() { _ = g.server.Serve(listener) }()
	t.Cleanup(g.end)
	return g
}

// end ends the server at once, like the end of a process.
func (g *greeter) end() { g.server.Stop() }

// hit waits for a call that starts after now.
func (g *greeter) hit(t *testing.T) {
	t.Helper()
	before := g.hits.Load()
	(&env{T: t}).eventually("calls of "+g.entry.Address, func() string {
		if g.hits.Load() <= before {
			return "none"
		}
		return ""
	})
}

func plainBootstrap(address string) string { return bootstrap(address, `{"type":"insecure"}`) }

// bootstrap is the configuration that GRPC_XDS_BOOTSTRAP would name.
func bootstrap(address, credentials string) string {
	return fmt.Sprintf(`{"xds_servers":[{"server_uri":"%s","channel_creds":[%s],"server_features":["xds_v3"]}],"node":{"id":"test"}}`,
		address, credentials)
}

// meshClient is a user's gRPC client, with gRPC's own xDS.
type meshClient struct {
	grpc_health_v1.HealthClient
}

func dialXDS(t *testing.T, bootstrap, target string) *meshClient {
	t.Helper()
	builder, err := xds.NewXDSResolverWithConfigForTesting([]byte(bootstrap))
	if err != nil {
		t.Fatal(err)
	}
	dialer := &net.Dialer{}
	conn, err := grpc.NewClient(target, grpc.WithResolvers(builder),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// It dials only endpoints, not the xDS server.
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", strings.Replace(address, entryNet, dialNet, 1))
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &meshClient{grpc_health_v1.NewHealthClient(conn)}
}

// call makes one call, and waits for an endpoint if asked.
func (c *meshClient) call(ctx context.Context, wait bool, options ...grpc.CallOption) error {
	_, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, append(options, grpc.WaitForReady(wait))...)
	return err
}

// reaches waits until calls reach exactly these.
func (c *meshClient) reaches(t *testing.T, greeters ...*greeter) {
	t.Helper()
	want := map[string]bool{}
	for _, g := range greeters {
		want[strings.Replace(address(g.entry), entryNet, dialNet, 1)] = true
	}
	(&env{T: t}).eventually("calls", func() string {
		have := map[string]bool{}
		for range 4 * len(want) {
			var to peer.Peer
			if err := c.call(bounded(t), true, grpc.Peer(&to)); err != nil {
				return err.Error()
			}
			have[to.Addr.String()] = true
		}
		if !maps.Equal(have, want) {
			return fmt.Sprintf("reach %v, want %v", have, want)
		}
		return ""
	})
}

// talk makes calls until stop, from several goroutines; one of them makes slow calls.
// None waits for an endpoint, so a call that finds none is lost.
func (c *meshClient) talk(t *testing.T) (l *load, stop func()) {
	t.Helper()
	l = &load{}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for n := range 5 {
		all.Go(func() {
			for ctx.Err() == nil {
				one := context.WithoutCancel(ctx)
				if n == 0 {
					one = metadata.AppendToOutgoingContext(one, slow, "yes")
				}
				l.sent.Add(1)
				if err := c.call(one, false); err != nil {
					l.lost.Add(1)
					l.first.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(stop)
	return l, stop
}

// nothingLost stops the calls and checks them.
func (l *load) nothingLost(t *testing.T, stop func()) {
	t.Helper()
	stop()
	if lost := l.lost.Load(); lost > 0 {
		t.Errorf("%d of %d calls were lost, the first by: %v", lost, l.sent.Load(), *l.first.Load())
	}
	t.Logf("%d calls, %d lost", l.sent.Load(), l.lost.Load())
}
