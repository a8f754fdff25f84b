// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/xds"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

func plainBootstrap(address string) string { return bootstrap(address, `{"type":"insecure"}`) }

// bootstrap is the configuration that GRPC_XDS_BOOTSTRAP would name.
func bootstrap(address, credentials string) string {
	return fmt.Sprintf(`{"xds_servers":[{"server_uri":"%s","channel_creds":[%s],"server_features":["xds_v3"]}],"node":{"id":"test"}}`,
		address, credentials)
}

// dialXDS returns a client with gRPC's own xDS.
func dialXDS(t *testing.T, bootstrap, target string) *grpcClient {
	t.Helper()
	builder, err := xds.NewXDSResolverWithConfigForTesting([]byte(bootstrap))
	registrytest.NoError(t, err)
	conn, err := grpc.NewClient(target, grpc.WithResolvers(builder),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// It dials only endpoints, not the xDS server.
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialMember(ctx, "tcp", address)
		}))
	registrytest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &grpcClient{grpc_health_v1.NewHealthClient(conn)}
}

// talk makes calls until they are stopped, from several goroutines, of which some make
// slow calls. None waits for an endpoint, so a call that finds none is lost.
func (c *grpcClient) talk(t *testing.T) calls {
	t.Helper()
	return calls{
		registrytest.Call(t, 4, 0, func(ctx context.Context) error { return c.call(ctx, false) }),
		registrytest.Call(t, 1, 0, func(ctx context.Context) error {
			return c.call(metadata.AppendToOutgoingContext(ctx, slow, "yes"), false)
		}),
	}
}

// calls are fast and slow ones.
type calls []*registrytest.Callers

func (c calls) stop() {
	for _, callers := range c {
		callers.Stop()
	}
}

// noneLost stops the calls and checks them.
func (c calls) noneLost(t *testing.T) {
	t.Helper()
	c.stop()
	for _, callers := range c {
		callers.CheckNoneLost(t)
	}
}

func (c calls) lost() (n int64) {
	for _, callers := range c {
		n += callers.Lost()
	}
	return n
}
