// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	grpcxds "google.golang.org/grpc/xds"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/endpointslice"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/test/integration/scene"
	"github.com/usher-dev/usher/test/servers/run"
)

// freePort returns a free loopback address, for a server that restarts on it.
func freePort(t *testing.T) string {
	t.Helper()
	ports := checktest.Must(run.FreePorts(t.Context(), 1))(t)
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

// replica is only Usher's xDS server.
type replica struct {
	store *xds.Store
	stop  func()
}

// startXDS starts one, and returns when it answers.
func startXDS(s *scene.Scene, config *rest.Config, o xds.ServerOptions) *replica {
	s.Helper()
	r, probes, manager := &replica{}, freePort(s.T), options()
	manager.HealthProbeBindAddress = probes
	r.stop = s.Manage(config, manager, func(ctx context.Context, mgr ctrl.Manager) (err error) {
		o.Registerer = prometheus.NewRegistry()
		r.store, err = xds.Setup(ctx, mgr, o)
		return err
	})
	registrytest.Until(s.T, "readiness", func() bool {
		_, err := run.HTTP{Address: "http://" + probes}.Do(s.Context(), http.MethodGet, "/readyz", nil, nil)
		return err == nil
	})
	return r
}

// mesh is a namespace whose entries a replica serves.
type mesh struct {
	registry.Connector
	*replica
	*scene.Scene
	address string
}

func newMesh(t *testing.T, on *scene.Plane) *mesh {
	t.Helper()
	s, address := on.Begin(t), freePort(t)
	return meshOf(s, startXDS(s, s.RESTConfig(), xds.ServerOptions{Address: address}), address)
}

// meshOf is a mesh on a running replica.
func meshOf(s *scene.Scene, r *replica, address string) *mesh {
	s.Helper()
	m := &mesh{replica: r, Scene: s, address: address}
	m.connect()
	return m
}

// connect recreates the connector, as the process of the replica has it.
func (m *mesh) connect() {
	m.Helper()
	m.Connector = registrytest.Connect(m.store.Connector(endpointslice.Options{Reader: m.Scene, Writer: m.Scene, Namespace: m.Namespace}))(m.T)
}

// target is what clients dial.
func (m *mesh) target() string { return "xds:///web." + m.Namespace }

func TestXDSConformance(t *testing.T) {
	t.Parallel()
	server, address := newPlane(t), freePort(t)
	r := startXDS(server.Begin(t), server.RESTConfig(), xds.ServerOptions{Address: address})
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		// Each test begins with an empty namespace.
		m := meshOf(server.Begin(t), r, address)
		return registrytest.Fixture{
			Connector: m.Connector,
			HoldsBack: true,
			Seed: func(service, id string) {
				seed(m.Scene, "seed", xds.LabelService, service, "usher.dev", theirs(id))
			},
			Break: server.KillAPIServer, Mend: server.StartAPIServer,
		}
	})
}

// TestXDSHidden hides entries from readers of Services.
func TestXDSHidden(t *testing.T) {
	m := newMesh(t, shared)
	registrytest.Put(t, m, member(1))
	var list discoveryv1.EndpointSliceList
	if m.All(&list); len(list.Items) != 1 {
		t.Fatalf("%d slices", len(list.Items))
	}
	labels := list.Items[0].Labels
	if _, named := labels[discoveryv1.LabelServiceName]; named || labels[xds.LabelService] != "web" {
		t.Errorf("the slice has the labels %v", labels)
	}
	registrytest.Remove(t, m, member(1))
	if m.All(&list); len(list.Items) != 0 {
		t.Errorf("%d slices are left", len(list.Items))
	}
}

// TestXDSBehind confirms nothing that this replica does not serve.
func TestXDSBehind(t *testing.T) {
	m := newMesh(t, shared)
	registrytest.Put(t, m, member(1))
	m.stop()
	checktest.NoError(t, registrytest.TryPut(t, m, member(2)))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := m.List(ctx, "web")
	registrytest.Check(t, "a list that is not served", err, registry.ErrTransient, "does not serve the change of EndpointSlice web-usher-")
}

// TestXDSRights serves with the operator's rights, and not without.
func TestXDSRights(t *testing.T) {
	k := newKube(t, shared)
	config := k.user()
	k.grant()
	address := freePort(t)
	m := meshOf(k.Scene, startXDS(k.Scene, config, xds.ServerOptions{Address: address}), address)
	registrytest.Put(t, m, member(1))
	registrytest.Only(t, m)
}

// heed is how long clients may take to learn of a change.
const heed = time.Second

// join starts a server and waits for calls to it.
func (m *mesh) join(t *testing.T, n int, port int32) *registrytest.Instance {
	t.Helper()
	i := startMember(t, n, port, serveGRPC)
	registrytest.Put(t, m, i.Entry)
	i.AwaitMore(t, 1)
	return i
}

// leave removes a server, waits, and ends it.
func (m *mesh) leave(t *testing.T, i *registrytest.Instance, wait time.Duration) {
	t.Helper()
	if left := registrytest.Remove(t, m, i.Entry); registrytest.Find(left, i.Entry.ID) != nil {
		t.Fatalf("listed: %+v", left)
	}
	if wait > 0 {
		<-time.After(wait) // This delay is under test.
	}
	i.Kill()
}

// hold takes a server out of service, waits, and ends it; its entry stays.
func (m *mesh) hold(t *testing.T, i *registrytest.Instance, wait time.Duration) {
	t.Helper()
	held := i.Entry
	held.Weight = 0
	if left := registrytest.Put(t, m, held); registrytest.Find(left, i.Entry.ID) == nil {
		t.Fatalf("listed: %+v", left)
	}
	<-time.After(wait) // This delay is under test.
	i.Kill()
}

// three starts the first servers, and a client that reaches them.
func (m *mesh) three(t *testing.T) (*grpcClient, []*registrytest.Instance) {
	t.Helper()
	var all []*registrytest.Instance
	for n := range 3 {
		i := startMember(t, n+1, 0, serveGRPC)
		registrytest.Put(t, m, i.Entry)
		all = append(all, i)
	}
	c := m.dial(t)
	c.reaches(t, all...)
	return c, all
}

// dial returns a client of this replica.
func (m *mesh) dial(t *testing.T) *grpcClient {
	t.Helper()
	return dialXDS(t, plainBootstrap(m.address), m.target())
}

// TestXDSTraffic rolls servers, updates them in place and scales them in, under
// clients with gRPC's own xDS.
func TestXDSTraffic(t *testing.T) {
	t.Parallel()
	m := newMesh(t, shared)
	c, all := m.three(t)
	calls := c.talk(t)
	for n, old := range all { // Others join.
		old.AwaitMore(t, 1)
		all[n] = m.join(t, 11+n, 0)
		m.leave(t, old, heed)
	}
	for n, old := range all { // The same come back.
		m.leave(t, old, heed)
		all[n] = m.join(t, 11+n, old.Entry.Port)
	}
	for n, old := range all { // The same, without leaving the list.
		old.AwaitMore(t, 1)
		m.hold(t, old, heed)
		all[n] = m.join(t, 11+n, old.Entry.Port)
	}
	for _, old := range all[1:] {
		m.leave(t, old, heed)
	}
	all[0].AwaitMore(t, 1)
	calls.StopWithoutLoss(t)

	// Without the wait, calls must be lost, or the traffic proves nothing.
	calls = c.talk(t)
	for n := 0; n < 10 && calls.Lost() == 0; n++ {
		next := m.join(t, 31+n, 0)
		m.leave(t, all[0], 0)
		all[0] = next
	}
	calls.Stop()
	if calls.Lost() == 0 {
		t.Error("no call was lost without a wait")
	}
}

// TestXDSRestart ends the xDS server under traffic and starts another one.
func TestXDSRestart(t *testing.T) {
	t.Parallel()
	m := newMesh(t, shared)
	c, all := m.three(t)
	calls := c.talk(t)
	for range 3 {
		m.stop()
		all[0].AwaitMore(t, 1)
		// One client starts while there is no server.
		late := m.dial(t)
		if err := late.call(registrytest.Bounded(t), false); err == nil {
			t.Error("a client that starts without a server finds instances")
		}
		// Another server joins meanwhile.
		joins := startMember(t, 20+len(all), 0, serveGRPC)
		checktest.NoError(t, registrytest.TryPut(t, m, joins.Entry))
		m.replica = startXDS(m.Scene, m.RESTConfig(), xds.ServerOptions{Address: m.address})
		m.connect()
		joins.AwaitMore(t, 1)
		all = append(all, joins)
		late.reaches(t, all...)
	}
	m.leave(t, all[1], heed)
	all[0].AwaitMore(t, 1)
	calls.StopWithoutLoss(t)
}

// TestXDSWithoutAPIServer keeps serving while the API server is down.
func TestXDSWithoutAPIServer(t *testing.T) {
	t.Parallel()
	server := newPlane(t)
	m := newMesh(t, server)
	c, all := m.three(t)
	calls := c.talk(t)
	checktest.NoError(t, server.KillAPIServer())
	m.dial(t).reaches(t, all...)
	checktest.NoError(t, server.StartAPIServer(registrytest.Bounded(t)))
	m.leave(t, all[2], heed)
	c.reaches(t, all[:2]...)
	calls.StopWithoutLoss(t)
}

// TestXDSReplicas gives clients two replicas.
func TestXDSReplicas(t *testing.T) {
	m := newMesh(t, shared)
	mine, all := m.three(t)
	other := freePort(t)
	startXDS(m.Scene, m.RESTConfig(), xds.ServerOptions{Address: other})
	theirs := dialXDS(t, plainBootstrap(other), m.target())
	theirs.reaches(t, all...)
	registrytest.Remove(t, m, all[0].Entry, all[1].Entry)
	mine.reaches(t, all[2])
	theirs.reaches(t, all[2])
}

// TestXDSEmpty tells clients at once when a service has no instance, and when it has
// one again.
func TestXDSEmpty(t *testing.T) {
	m := newMesh(t, shared)
	c := m.dial(t)
	began := time.Now()
	err := c.call(registrytest.Bounded(t), false)
	if err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("a call of nobody returned %v after %s", err, time.Since(began))
	}
	g := startMember(t, 1, 0, serveGRPC)
	for range 2 {
		registrytest.Put(t, m, g.Entry)
		c.reaches(t, g)
		registrytest.Remove(t, m, g.Entry)
		registrytest.Eventually(t, "the end of the last one", func() string {
			return registrytest.Unless(c.call(registrytest.Bounded(t), false) != nil, "calls still reach it")
		})
	}
}

// TestXDSThousands serves many entries, and a client of them follows a removal.
func TestXDSThousands(t *testing.T) {
	m := newMesh(t, shared)
	g := startMember(t, 1, 0, serveGRPC)
	c := m.dial(t)
	registrytest.Put(t, m, g.Entry)
	c.reaches(t, g)
	if entries := registrytest.Put(t, m, members(3002)[2:]...); len(entries) != 3001 {
		t.Fatalf("%d entries are listed", len(entries))
	}
	registrytest.Remove(t, m, g.Entry)
	registrytest.Eventually(t, "a client of thousands", func() string {
		before := g.Served.Load()
		_ = c.call(registrytest.Bounded(t), false)
		return registrytest.Unless(g.Served.Load() == before, "it still calls the one that was removed")
	})
}

// TestXDSCertificates serves only clients with a certificate.
func TestXDSCertificates(t *testing.T) {
	authority := registrytest.NewAuthority(t)
	ca, serverCert, serverKey := authority.Files()
	_, userCert, userKey := authority.Files()
	address, s := freePort(t), shared.Begin(t)
	m := meshOf(s, startXDS(s, s.RESTConfig(), xds.ServerOptions{Address: address,
		TLS: xds.TLSFiles{Certificate: serverCert, Key: serverKey, ClientCA: ca}}), address)
	i := startMember(t, 1, 0, serveGRPC)
	registrytest.Put(t, m, i.Entry)
	known := `{"type":"tls","config":{"ca_certificate_file":"` + ca + `","certificate_file":"` + userCert + `","private_key_file":"` + userKey + `"}}`
	dialXDS(t, bootstrap(address, known), m.target()).reaches(t, i)
	for who, credentials := range map[string]string{
		"no certificate": `{"type":"tls","config":{"ca_certificate_file":"` + ca + `"}}`,
		"plain text":     `{"type":"insecure"}`,
	} {
		if err := dialXDS(t, bootstrap(address, credentials), m.target()).call(registrytest.Bounded(t), false); err == nil {
			t.Errorf("a client with %s is served", who)
		}
	}

	// A replaced certificate is used at once.
	nextCA, nextCert, nextKey := registrytest.NewAuthority(t).Files()
	for from, to := range map[string]string{nextCert: serverCert, nextKey: serverKey} {
		checktest.NoError(t, os.Rename(from, to))
	}
	dialXDS(t, bootstrap(address, strings.Replace(known, ca, nextCA, 1)), m.target()).reaches(t, i)
}

// TestXDSWeights checks what the documents say about round_robin, which the cluster
// requests: it ignores weights.
func TestXDSWeights(t *testing.T) {
	m := newMesh(t, shared)
	light, heavy := startMember(t, 1, 0, serveGRPC), startMember(t, 2, 0, serveGRPC)
	light.Entry.Weight, heavy.Entry.Weight = 1, 3
	registrytest.Put(t, m, light.Entry, heavy.Entry)
	c := m.dial(t)
	c.reaches(t, light, heavy)
	before := light.Served.Load() - heavy.Served.Load()
	for range 100 {
		checktest.NoError(t, c.call(registrytest.Bounded(t), false))
	}
	if more := light.Served.Load() - heavy.Served.Load() - before; more < -2 || more > 2 {
		t.Errorf("the one of less weight got %d more of 100 calls", more)
	}
}

func plainBootstrap(address string) string { return bootstrap(address, `{"type":"insecure"}`) }

// bootstrap is the configuration that GRPC_XDS_BOOTSTRAP would name.
func bootstrap(address, credentials string) string {
	return fmt.Sprintf(`{"xds_servers":[{"server_uri":"%s","channel_creds":[%s],"server_features":["xds_v3"]}],"node":{"id":"test"}}`,
		address, credentials)
}

// dialXDS returns a client with gRPC's own xDS.
func dialXDS(t *testing.T, bootstrap, target string) *grpcClient {
	t.Helper()
	builder := checktest.Must(grpcxds.NewXDSResolverWithConfigForTesting([]byte(bootstrap)))(t)
	conn := registrytest.Connect(grpc.NewClient(target, grpc.WithResolvers(builder),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// It dials only endpoints, not the xDS server.
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialMember(ctx, "tcp", address)
		})))(t)
	return &grpcClient{grpc_health_v1.NewHealthClient(conn)}
}

// talk makes calls until they are stopped, five at a time, one of them a slow one. None waits
// for an endpoint, so a call that finds none is lost.
func (c *grpcClient) talk(t *testing.T) *registrytest.Callers {
	t.Helper()
	var slowly atomic.Bool
	return registrytest.Call(t, 5, 0, func(ctx context.Context) error {
		if slowly.CompareAndSwap(false, true) {
			defer slowly.Store(false)
			ctx = metadata.AppendToOutgoingContext(ctx, slow, "yes")
		}
		return c.call(ctx, false)
	})
}
