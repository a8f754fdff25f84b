// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/nacos"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

// TestServer uses one server for all tests that need no other, since Nacos starts
// slowly, and a namespace for each of them.
func TestServer(t *testing.T) {
	s := start(t, nil)
	s.play(t)
	t.Run("3000 entries", func(t *testing.T) {
		_, r := s.connect(t)
		registrytest.PutMany(t, r, 3000)
	})
}

// play plays all that any server of Nacos has to pass.
func (s *server) play(t *testing.T) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *server){
		"conformance": testConformance, "changes of the console are undone": testConsole,
		"an address that another entry has": testAddressOfAnother, "a service of ephemeral instances": testEphemeralService,
		"traffic": testTraffic, "self-registered": testSelfRegistered, "health checks": testHealthCheck,
	} {
		t.Run(name, func(t *testing.T) { test(t, s) })
	}
}

func testConformance(t *testing.T, s *server) {
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		namespace, r := s.connect(t)
		return registrytest.Fixture{
			Connector: r, AddressIsIdentity: true, HoldsBack: true,
			Seed: func(service, id string) {
				s.write(t, http.MethodPost, foreign(namespace, service, id))
				registrytest.Until(t, "the foreign entry", func() bool { return len(registrytest.List(t, r)) == 1 })
			},
			Break: s.Kill, Mend: s.Restart, Hang: s.Hang, Resume: s.Resume,
		}
	})
}

// testConsole changes an entry as Nacos's console does. The console stores its settings
// separately from the instance, and they override what is registered later.
func testConsole(t *testing.T, s *server) {
	namespace, r := s.connect(t)
	want := registrytest.Entry("a")
	registrytest.Put(t, r, want)
	s.write(t, http.MethodPut, url.Values{
		"namespaceId": {namespace}, "serviceName": {"web"}, "ip": {"10.0.0.1"}, "port": {"8080"}, "ephemeral": {"false"}, "weight": {"3"},
		"enabled": {"false"}, "metadata": {`{"zone":"z","more":"x"}`},
	})
	registrytest.Until(t, "the console's change", func() bool { return registrytest.Only(t, r).Weight == 0 })
	registrytest.Heals(t, "the console's change", r, want)
	registrytest.Only(t, r)
	// The next Pod of that address starts without this one's settings.
	registrytest.Remove(t, r, want)
	next := registrytest.Entry("b")
	next.Metadata = nil
	registrytest.Heals(t, "the next instance", r, next)
	registrytest.Only(t, r)
}

// testAddressOfAnother refuses to overwrite an existing entry of Nacos at that address.
func testAddressOfAnother(t *testing.T, s *server) {
	namespace, r := s.connect(t)
	s.write(t, http.MethodPost, foreign(namespace, "web", "theirs"))
	ours := registrytest.Entry("a")
	registrytest.Put(t, r, ours)
	registrytest.Until(t, "both entries", func() bool { return len(registrytest.List(t, r)) == 2 })
	atTheirs := registrytest.Entry("b")
	atTheirs.Address, atTheirs.Port = "192.0.2.1", 1
	registrytest.CheckRefused(t, "their address", registrytest.TryPut(t, r, atTheirs), "b", registry.ErrForeign)
	registrytest.CheckRefused(t, "our own address", registrytest.TryPut(t, r, registrytest.Entry("b")), "b", registry.ErrConflict)
	// In one batch, the address passes on.
	ours.Version = registrytest.List(t, r)[0].Version
	err := r.Apply(registrytest.Bounded(t), "web", []registry.Change{
		{Op: registry.Put, Entry: registrytest.Entry("b")}, {Op: registry.Remove, Entry: ours}})
	if have := registrytest.List(t, r); err != nil || have[0].ID != "b" {
		t.Errorf("%v; listed: %+v", err, have)
	}
}

// testEphemeralService reports that applications register themselves.
func testEphemeralService(t *testing.T, s *server) {
	namespace, r := s.connect(t)
	theirs := foreign(namespace, "web", "theirs")
	theirs.Set("ephemeral", "true")
	s.write(t, http.MethodPost, theirs)
	err := registrytest.TryPut(t, r, registrytest.Entry("a"))
	registrytest.CheckRefused(t, "a persistent instance", err, "a", registry.ErrPermanent, "ephemeral")
}

// testHealthCheck makes Nacos check a port where nobody listens.
func testHealthCheck(t *testing.T, s *server) {
	check := func(checks bool) {
		s.checks = checks
		checktest.NoError(t, s.ready(registrytest.Bounded(t)))
	}
	check(true)
	defer check(false)
	_, r := s.connect(t)
	e := registrytest.Entry("a")
	e.Address, e.Port = "127.0.0.1", 1
	registrytest.Put(t, r, e)
	registrytest.Until(t, "a failed health check", func() bool { return registrytest.Only(t, r).Weight == 0 })
	e.Version = registrytest.Only(t, r).Version
	registrytest.CheckRefused(t, "an unhealthy instance", registrytest.TryPut(t, r, e), "a", registry.ErrTransient)
}

// users has a server ask who somebody is.
var users = map[string]string{"nacos.core.auth.enabled": "true", "nacos.core.auth.admin.enabled": "true"}

// TestUsers logs in, and reports what is wrong if that fails. This server answers a
// wrong password with an internal error.
func TestUsers(t *testing.T) { testUsers(t, start(t, users), registry.ErrPermanent) }

// testUsers has unknown be what somebody whom the server does not know gets.
func testUsers(t *testing.T, s *server, unknown error) {
	servers.Must(t, s.HTTP, http.MethodPost, "/nacos/v3/auth/user/admin?password=right-one", nil, nil)
	secret := func(user, password string) map[string][]byte {
		return map[string][]byte{credentials.KeyUsername: []byte(user), credentials.KeyPassword: []byte(password + "\n")}
	}
	first := s.connectWith(t, "public", secret("nacos", "right-one"))
	registrytest.Until(t, "Nacos to know the new user", func() bool { return first.Ping(registrytest.Bounded(t)) == nil })
	for name, test := range map[string]struct {
		secret map[string][]byte
		want   error
	}{
		"right": {secret("nacos", "right-one"), nil}, "wrong": {secret("nacos", registrytest.Secret), registry.ErrTransient},
		"unknown": {secret("nobody", registrytest.Secret), unknown}, "none": {nil, registry.ErrPermanent},
	} {
		r := s.connectWith(t, "public", test.secret)
		registrytest.Check(t, name+": ping", r.Ping(registrytest.Bounded(t)), test.want)
		registrytest.Check(t, name+": apply", registrytest.TryPut(t, r, registrytest.Entry(name)), test.want)
	}
}

// testTraffic rolls instances under a caller that polls Nacos's client API, as clients
// without a subscription do.
func testTraffic(t *testing.T, s *server) {
	const period = 500 * time.Millisecond
	namespace, r := s.connect(t)
	registrytest.Rollout{Connector: r, Propagation: 2 * period}.Run(t, func(t *testing.T) func() []string {
		return registrytest.Follow(t, period, func(ctx context.Context) ([]string, error) { return s.callable(ctx, namespace) })
	})
}

// host is an instance that a caller gets.
type host struct {
	IP   string
	Port int
}

func addresses(hosts []host) []string {
	return list.Map(hosts, func(h host) string { return fmt.Sprintf("%s:%d", h.IP, h.Port) })
}

// asked is what a caller asks for.
func asked(namespace string) string {
	return url.Values{"namespaceId": {namespace}, "serviceName": {"web"}, "healthyOnly": {"true"}}.Encode()
}

// callable returns the addresses that a caller gets.
func (s *server) callable(ctx context.Context, namespace string) ([]string, error) {
	var said struct{ Data []host }
	_, err := s.Do(ctx, http.MethodGet, clientPath+"/list?"+asked(namespace), nil, &said)
	return addresses(said.Data), err
}

// testSelfRegistered has applications register themselves by Nacos's client API, with ephemeral instances: a registration
// when they start, and heartbeats.
func testSelfRegistered(t *testing.T, s *server) {
	registrytest.RunSelfRegistered(t, func(t *testing.T) registrytest.SelfRegistered {
		namespace, r := s.connect(t)
		send := func(t *testing.T, method, address string, port int32, more string) {
			form := url.Values{"namespaceId": {namespace}, "serviceName": {"web"}, "ip": {address}, "port": {strconv.Itoa(int(port))}, "ephemeral": {"true"}}
			servers.Must(t, s.HTTP, method, clientPath+"?"+form.Encode()+more, nil, nil)
		}
		return registrytest.SelfRegistered{
			Connector: r,
			Register:  func(t *testing.T, address string, port int32) { send(t, http.MethodPost, address, port, "") },
			Beat: func(t *testing.T, address string, port int32) {
				send(t, http.MethodPost, address, port, "&heartBeat=true")
			},
			Leave: func(t *testing.T, address string, port int32) { send(t, http.MethodDelete, address, port, "") },
			Callers: func(t *testing.T) []string {
				return checktest.Must(s.callable(registrytest.Bounded(t), namespace))(t)
			},
		}
	})
}

// clientPath is that of instances in the API for clients.
const clientPath = "/nacos/v3/client/ns/instance"

const instancePath = "/nacos/v3/admin/ns/instance"

// server is a single-member Nacos.
type server struct {
	*run.Process
	run.HTTP
	// front is the address that connectors get.
	front  string
	checks bool // Whether it checks instances' ports itself.
	roots  int
}

// start starts a server with these settings added to its own.
func start(t *testing.T, settings map[string]string) *server {
	t.Helper()
	port := freePort(t)
	s := &server{HTTP: run.HTTP{Address: fmt.Sprintf("http://127.0.0.1:%d", port)}}
	s.front = s.Address
	home := t.TempDir()
	all := map[string]string{
		"nacos.server.main.port": strconv.Itoa(port), "nacos.core.auth.system.type": "nacos",
		"nacos.core.auth.enabled": "false", "nacos.core.auth.admin.enabled": "false", "nacos.core.auth.console.enabled": "false",
		"db.pool.config.connectionTimeout":    "30000", // Milliseconds; the default is short for a busy machine.
		"nacos.core.auth.server.identity.key": "test", "nacos.core.auth.server.identity.value": "test",
		"nacos.core.auth.plugin.nacos.token.secret.key": "dGhpcyBpcyBhIGtleSBvZiB0ZXN0cyB0aGF0IGlzIGxvbmcgZW5vdWdo",
	}
	maps.Copy(all, settings)
	s.Process = servers.Start(t, run.Spec{
		Name: "nacos", Path: "java", Dir: home, Ready: s.ready,
		Args: append([]string{"-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dnacos.home=" + home, "-Dnacos.standalone=true",
			"-Dnacos.server.ip=127.0.0.1", "-Dserver.address=127.0.0.1",
			"-Dspring.config.additional-location=file:" + configure(t, all)},
			servers.Java(t, "nacos", "server", "hessian-4.0.63.jar")...),
	})
	return s
}

// configure writes the settings into a directory.
func configure(t *testing.T, settings map[string]string) string {
	t.Helper()
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		_, _ = fmt.Fprintf(&text, "%s=%s\n", key, settings[key])
	}
	folder := t.TempDir() + "/"
	checktest.NoError(t, os.WriteFile(folder+"application.properties", []byte(text.String()), 0o600))
	return folder
}

// freePort is a free port; the ports that Nacos derives from it are free too. They are
// below those that clients use, which come and go.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10_000 + rand.IntN(20_000)
		if free(t, port) && free(t, port+1000) && free(t, port+1001) && free(t, port-1000) {
			return port
		}
	}
	t.Fatal("no port has free neighbours")
	return 0
}

func free(t *testing.T, port int) bool {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf(":%d", port))
	return err == nil && listener.Close() == nil
}

// ready waits for the server, and disables its own health checks where a test does not
// want them: most addresses have no listener.
func (s *server) ready(ctx context.Context) error {
	if _, err := s.Do(ctx, http.MethodGet, "/nacos/v3/admin/core/state/readiness", nil, nil); err != nil {
		return err
	}
	_, err := s.Do(ctx, http.MethodPut, "/nacos/v3/admin/ns/ops/switches?"+
		url.Values{"entry": {"healthCheckEnabled"}, "value": {strconv.FormatBool(s.checks)}}.Encode(), nil, nil)
	if err != nil && strings.Contains(err.Error(), "403") {
		return nil // It has users; such tests check no health.
	}
	return err
}

// write sends a change of an instance, bypassing the connector.
func (s *server) write(t *testing.T, method string, form url.Values) {
	t.Helper()
	servers.Must(t, s.HTTP, method, instancePath+"?"+form.Encode(), nil, nil)
}

// foreign is an instance as other clients register it.
func foreign(namespace, service, id string) url.Values {
	metadata, _ := json.Marshal(map[string]string{"usher-id": id, "usher-address": "192.0.2.1:1"})
	return url.Values{
		"namespaceId": {namespace}, "serviceName": {service}, "ip": {"192.0.2.1"}, "port": {"1"},
		"weight": {"1"}, "ephemeral": {"false"}, "metadata": {string(metadata)},
	}
}

// connect returns a connector to a namespace that nobody has used.
func (s *server) connect(t *testing.T) (namespace string, r *nacos.Registry) {
	t.Helper()
	s.roots++
	namespace = fmt.Sprintf("test-%d", s.roots)
	return namespace, s.connectWith(t, namespace, nil)
}

func (s *server) connectWith(t *testing.T, namespace string, secret map[string][]byte) *nacos.Registry {
	t.Helper()
	return registrytest.Connect(nacos.New(s.front, namespace+"/DEFAULT_GROUP/DEFAULT", secret))(t)
}
