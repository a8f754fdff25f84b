// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"

	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.etcd.io/etcd/client/v3/naming/resolver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
)

// backend is a gRPC server that only reports that it is healthy.
type backend struct {
	grpc_health_v1.UnimplementedHealthServer
}

// Check implements grpc_health_v1.HealthServer.
func (backend) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

// serve starts a backend and returns the entry it should have.
func serve(t *testing.T, id string) registry.Entry {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, backend{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	port := listener.Addr().(*net.TCPAddr).Port
	return registry.Entry{
		ID: id, Address: "127.0.0.1", Port: int32(port), Weight: 10, Metadata: map[string]string{"zone": "a"},
		Owner: registry.Owner{Cluster: "here", Namespace: "demo", Registration: "greeter", Pod: id, PodUID: "uid-" + id},
	}
}

func address(e registry.Entry) string { return fmt.Sprintf("%s:%d", e.Address, e.Port) }

// put replaces the connector's entries with these IDs.
func put(t *testing.T, c registry.Connector, op registry.Op, entries ...registry.Entry) {
	t.Helper()
	listed, err := c.List(bounded(t), "greeter")
	if err != nil {
		t.Fatal(err)
	}
	var changes []registry.Change
	for _, e := range entries {
		if at := slices.IndexFunc(listed, func(l registry.Entry) bool { return l.ID == e.ID }); at >= 0 {
			e.Version = listed[at].Version
		}
		changes = append(changes, registry.Change{Op: op, Entry: e})
	}
	if err := c.Apply(bounded(t), "greeter", changes); err != nil {
		t.Fatal(err)
	}
}

func dial(t *testing.T, server *cluster.Etcd) grpc_health_v1.HealthClient {
	t.Helper()
	builder, err := resolver.NewBuilder(raw(t, server))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("etcd:///"+prefix+"/greeter", grpc.WithResolvers(builder),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

// reaches waits until calls reach exactly these entries.
func reaches(t *testing.T, client grpc_health_v1.HealthClient, entries ...registry.Entry) {
	t.Helper()
	want := map[string]bool{}
	for _, e := range entries {
		want[address(e)] = true
	}
	have := map[string]bool{}
	for ctx := bounded(t); ctx.Err() == nil; {
		have = map[string]bool{}
		for range 20 {
			var to peer.Peer
			_, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&to), grpc.WaitForReady(true))
			if err != nil {
				break
			}
			have[to.Addr.String()] = true
		}
		if maps.Equal(have, want) {
			return
		}
	}
	t.Fatalf("calls reach %v, want %v", have, want)
}

// TestGRPCResolver: a gRPC client finds what the connector wrote, and follows changes.
func TestGRPCResolver(t *testing.T) {
	server := clustertest.StartEtcd(t)
	connector := connect(t, server)
	a, b := serve(t, "a"), serve(t, "b")
	put(t, connector, registry.Put, a, b)
	client := dial(t, server)
	reaches(t, client, a, b)

	// Metadata changes while a client is connected.
	a.Weight, a.Metadata = 20, map[string]string{"zone": "b"}
	put(t, connector, registry.Put, a)
	reaches(t, client, a, b)

	put(t, connector, registry.Remove, a)
	reaches(t, client, b)
	put(t, connector, registry.Put, a)
	reaches(t, client, a, b)
}

// TestManagerReadsConnector: etcd's own manager reads what the connector wrote.
func TestManagerReadsConnector(t *testing.T) {
	server := clustertest.StartEtcd(t)
	mine := serve(t, "mine")
	put(t, connect(t, server), registry.Put, mine)
	manager, err := endpoints.NewManager(raw(t, server), prefix+"/greeter")
	if err != nil {
		t.Fatal(err)
	}
	listed, err := manager.List(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	endpoint := listed[prefix+"/greeter/mine"]
	if len(listed) != 1 || endpoint.Addr != address(mine) {
		t.Errorf("the manager lists %v", listed)
	}
	metadata, _ := endpoint.Metadata.(map[string]any)
	if metadata["weight"] != 10.0 || metadata["zone"] != "a" {
		t.Errorf("metadata is %v", endpoint.Metadata)
	}
}

// TestConnectorReadsManager: the connector reads what the manager wrote.
func TestConnectorReadsManager(t *testing.T) {
	server := clustertest.StartEtcd(t)
	manager, err := endpoints.NewManager(raw(t, server), prefix+"/greeter")
	if err != nil {
		t.Fatal(err)
	}
	err = manager.AddEndpoint(bounded(t), prefix+"/greeter/theirs",
		endpoints.Endpoint{Addr: "192.0.2.1:1", Metadata: map[string]any{"weight": 3}})
	if err != nil {
		t.Fatal(err)
	}
	have, err := connect(t, server).List(bounded(t), "greeter")
	if err != nil || len(have) != 1 {
		t.Fatalf("the connector lists %v, %v", have, err)
	}
	if want := (registry.Entry{ID: "theirs", Address: "192.0.2.1", Port: 1, Weight: 3}); !have[0].Same(want) {
		t.Errorf("the manager's entry is %+v, want %+v", have[0], want)
	}
}
