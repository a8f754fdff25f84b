// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.etcd.io/etcd/client/v3/naming/resolver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/etcd"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/servers/run"
)

const prefix = "services"

func connect(t *testing.T, server *cluster.Etcd) *etcd.Registry {
	t.Helper()
	return registrytest.Connect(etcd.New([]string{server.Endpoint()}, usherv1alpha1.LayoutGRPC, prefix, nil, 5*time.Second))(t)
}

// places are where callers look by default, and values what an application of each layout writes.
var places, values = map[usherv1alpha1.EtcdLayout]string{
	usherv1alpha1.LayoutGRPC: "services/", usherv1alpha1.LayoutKratos: "/microservices/",
	usherv1alpha1.LayoutGoZero: "", usherv1alpha1.LayoutKitex: "kitex/registry-etcd/",
}, map[usherv1alpha1.EtcdLayout]string{
	usherv1alpha1.LayoutGRPC:   `{"Op":0,"Addr":"192.0.2.1:1"}`,
	usherv1alpha1.LayoutKratos: `{"id":"theirs","name":"web","endpoints":["grpc://192.0.2.1:1?isSecure=false"]}`,
	usherv1alpha1.LayoutGoZero: "192.0.2.1:1",
	usherv1alpha1.LayoutKitex:  `{"network":"tcp","address":"192.0.2.1:1","weight":10}`,
}

func TestEtcdConformance(t *testing.T) {
	server := clustertest.StartEtcd(t)
	for layout, value := range values {
		t.Run(string(layout), func(t *testing.T) {
			registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
				// All tests share one server: each begins with an empty one.
				checktest.Must(server.Client.Delete(registrytest.Bounded(t), "", clientv3.WithPrefix()))(t)
				settings := etcd.FromSpec(nil)(&usherv1alpha1.EtcdRegistry{Endpoints: []string{server.Endpoint()}, Layout: layout})
				return registrytest.Fixture{
					Connector: checktest.Must(settings.Connect(settings.Root, nil))(t),
					Seed: func(service, id string) {
						checktest.Must(server.Client.Put(registrytest.Bounded(t), places[layout]+service+"/"+id, value))(t)
					},
					Break: server.Kill, Mend: server.Restart, Atomic: true,
				}
			})
		})
	}
}

// TestEtcdCopies: somebody has copied a key in the layout whose keys have Usher's mark, so that one entry has two. Both
// go with the next change.
func TestEtcdCopies(t *testing.T) {
	server := clustertest.StartEtcd(t)
	connector := registrytest.Connect(etcd.New([]string{server.Endpoint()}, usherv1alpha1.LayoutGoZero, "", nil, 5*time.Second))(t)
	keys := func() (all []string) {
		for _, kv := range checktest.Must(server.Client.Get(registrytest.Bounded(t), "web", clientv3.WithPrefix()))(t).Kvs {
			all = append(all, string(kv.Key))
		}
		return all
	}
	for name, change := range map[string]func(t *testing.T, c registry.Connector, entries ...registry.Entry) []registry.Entry{
		"a change": registrytest.Put, "a removal": registrytest.Remove,
	} {
		a, other := registrytest.Entry("a"), registrytest.Entry("a-1")
		registrytest.Put(t, connector, a, other)
		for _, weight := range []string{"9", "11"} {
			key := strings.Replace(keys()[0], `{"weight":10`, `{"weight":`+weight, 1)
			checktest.Must(server.Client.Put(registrytest.Bounded(t), key, "192.0.2.1:1"))(t)
		}
		a.Weight = 12
		change(t, connector, a)
		registrytest.Remove(t, connector, other)
		if left := keys(); len(left) > 1 || len(left) == 1 && !strings.HasPrefix(left[0], `web/a {"weight":12,`) {
			t.Errorf("after %s etcd has %q", name, left)
		}
		registrytest.Remove(t, connector, a)
	}
}

// TestEtcdUsers logs in; errors say what is wrong with the credentials.
func TestEtcdUsers(t *testing.T) {
	server := clustertest.StartEtcd(t)
	admin, ctx := server.Client, registrytest.Bounded(t)
	checktest.Must(admin.UserAdd(ctx, "root", "root-password"))(t)
	checktest.Must(admin.UserGrantRole(ctx, "root", "root"))(t)
	checktest.Must(admin.UserAdd(ctx, "usher", "right"))(t)
	checktest.Must(admin.RoleAdd(ctx, "services"))(t)
	checktest.Must(admin.RoleGrantPermission(ctx, "services", "services/", "services0", clientv3.PermissionType(clientv3.PermReadWrite)))(t)
	checktest.Must(admin.UserGrantRole(ctx, "usher", "services"))(t)
	checktest.Must(admin.AuthEnable(ctx))(t)
	for name, test := range map[string]struct {
		prefix, user, password string
		want                   error
	}{
		"the right password":              {"services", "usher", "right", nil},
		"the wrong password":              {"services", "usher", registrytest.Secret, registry.ErrPermanent},
		"no user at all":                  {"services", "", "", registry.ErrPermanent},
		"a prefix that is not the user's": {"others", "usher", "right", registry.ErrPermanent},
		"no prefix":                       {"", "usher", "right", nil},
		"no prefix, the wrong password":   {"", "usher", registrytest.Secret, registry.ErrPermanent},
		"no prefix, no user at all":       {"", "", "", registry.ErrPermanent},
	} {
		secret := map[string][]byte{credentials.KeyUsername: []byte(test.user), credentials.KeyPassword: []byte(test.password)}
		r := checktest.Must(etcd.New([]string{server.Endpoint()}, usherv1alpha1.LayoutGRPC, test.prefix, secret, 5*time.Second))(t)
		registrytest.Check(t, name+": ping", r.Ping(ctx), test.want)
		checktest.NoError(t, r.Close())
	}
}

// startTLS starts an etcd that also listens with TLS, and returns its address. The port
// without TLS serves to wait for the start.
func startTLS(t *testing.T, args ...string) string {
	t.Helper()
	ports := checktest.Must(run.FreePorts(t.Context(), 2))(t)
	plain, secure := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("https://127.0.0.1:%d", ports[1])
	clustertest.StartEtcdWith(t, cluster.EtcdOptions{
		Port:      ports[0],
		ExtraArgs: append(args, "--listen-client-urls="+plain+","+secure, "--advertise-client-urls="+plain),
	})
	return secure
}

// TestEtcdTLS needs a client certificate, and verifies the server's.
func TestEtcdTLS(t *testing.T) {
	authority := registrytest.NewAuthority(t)
	ca, certificate, key := authority.Files()
	endpoint := startTLS(t, "--client-cert-auth", "--cert-file="+certificate, "--key-file="+key, "--trusted-ca-file="+ca)
	secure := func(secret map[string][]byte) (*etcd.Registry, error) {
		return etcd.New([]string{endpoint}, usherv1alpha1.LayoutGRPC, prefix, secret, 5*time.Second)
	}
	registrytest.CheckTLS(t, authority, registry.ErrTransient, secure)
	mine, _ := authority.Pair()
	_, other := authority.Pair()
	registrytest.CheckOptions(t, map[string]error{
		"a bundle without a certificate": registrytest.Refusal(secure(map[string][]byte{credentials.KeyCA: []byte("none")})),
		"a key of another certificate": registrytest.Refusal(secure(
			map[string][]byte{credentials.KeyCertificate: mine, credentials.KeyPrivateKey: other})),
	})
}

// slow is the metadata of a slow call.
const slow, callTime, slowTime = "slow", 5 * time.Millisecond, 400 * time.Millisecond

// serveGRPC starts a gRPC server for an instance, which reports that it is healthy. A call takes some time, so that some are
// in flight when the server ends.
func serveGRPC(i *registrytest.Instance, listener net.Listener) (kill func()) {
	server := grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			takes := callTime
			if len(metadata.ValueFromIncomingContext(ctx, slow)) > 0 {
				takes = slowTime
			}
			select {
			case <-time.After(takes):
			case <-ctx.Done():
			}
			i.Served.Add(1)
			return handler(ctx, request)
		}))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	return server.Stop
}

// grpcClient is a user's gRPC client.
type grpcClient struct {
	grpc_health_v1.HealthClient
}

// call makes one call, and waits for an endpoint if asked.
func (c *grpcClient) call(ctx context.Context, wait bool, options ...grpc.CallOption) error {
	_, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, append(options, grpc.WaitForReady(wait))...)
	return err
}

// reaches waits until calls reach exactly these instances.
func (c *grpcClient) reaches(t *testing.T, instances ...*registrytest.Instance) {
	t.Helper()
	want := map[string]bool{}
	for _, i := range instances {
		want[strings.Replace(address(i.Entry), entryNet, dialNet, 1)] = true
	}
	registrytest.Eventually(t, "calls", func() string {
		have := map[string]bool{}
		for range 4 * len(want) {
			var to peer.Peer
			if err := c.call(registrytest.Bounded(t), true, grpc.Peer(&to)); err != nil {
				return err.Error()
			}
			have[to.Addr.String()] = true
		}
		return registrytest.Unless(maps.Equal(have, want), fmt.Sprintf("reach %v, want %v", have, want))
	})
}

func address(e registry.Entry) string { return fmt.Sprintf("%s:%d", e.Address, e.Port) }

func dialEtcd(t *testing.T, server *cluster.Etcd) *grpcClient {
	t.Helper()
	builder := checktest.Must(resolver.NewBuilder(server.Client))(t)
	conn := registrytest.Connect(grpc.NewClient("etcd:///"+prefix+"/web", grpc.WithResolvers(builder),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`)))(t)
	return &grpcClient{grpc_health_v1.NewHealthClient(conn)}
}

// TestGRPCResolver uses a gRPC client that finds what the connector wrote, and follows
// changes.
func TestGRPCResolver(t *testing.T) {
	server := clustertest.StartEtcd(t)
	connector := connect(t, server)
	a, b := registrytest.StartOn(t, "a", "127.0.0.1:0", serveGRPC), registrytest.StartOn(t, "b", "127.0.0.1:0", serveGRPC)
	registrytest.Put(t, connector, a.Entry, b.Entry)
	client := dialEtcd(t, server)
	client.reaches(t, a, b)

	// Metadata changes while a client is connected.
	a.Entry.Weight, a.Entry.Metadata = 20, map[string]string{"zone": "b"}
	registrytest.Put(t, connector, a.Entry)
	client.reaches(t, a, b)

	registrytest.Remove(t, connector, a.Entry)
	client.reaches(t, b)
	registrytest.Put(t, connector, a.Entry)
	client.reaches(t, a, b)
}

// TestEtcdManager uses etcd's own manager: it reads what the connector wrote, and the
// connector reads what the manager wrote.
func TestEtcdManager(t *testing.T) {
	server := clustertest.StartEtcd(t)
	connector := connect(t, server)
	manager := checktest.Must(endpoints.NewManager(server.Client, prefix+"/web"))(t)
	registrytest.Put(t, connector, registrytest.Entry("mine"))
	listed, err := manager.List(registrytest.Bounded(t))
	endpoint := listed[prefix+"/web/mine"]
	if err != nil || len(listed) != 1 || endpoint.Addr != "10.0.0.1:8080" {
		t.Errorf("the manager lists %v, %v", listed, err)
	}
	metadata, _ := endpoint.Metadata.(map[string]any)
	if metadata["weight"] != 10.0 || metadata["zone"] != "a" {
		t.Errorf("metadata is %v", endpoint.Metadata)
	}
	err = manager.AddEndpoint(registrytest.Bounded(t), prefix+"/web/theirs",
		endpoints.Endpoint{Addr: "192.0.2.1:1", Metadata: map[string]any{"weight": 3}})
	checktest.NoError(t, err)
	want := registry.Entry{ID: "theirs", Address: "192.0.2.1", Port: 1, Weight: 3}
	if have := registrytest.Find(registrytest.List(t, connector), "theirs"); have == nil || !have.Same(want) {
		t.Errorf("the manager's entry is %+v, want %+v", have, want)
	}
}
