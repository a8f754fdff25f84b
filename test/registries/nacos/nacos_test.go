// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/nacos"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/servers"
)

// TestServer uses one server for all tests that need no other, since Nacos starts
// slowly, and a namespace for each of them.
func TestServer(t *testing.T) {
	s := start(t, nil)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *server)
	}{
		{"conformance", testConformance},
		{"changes of the console are undone", testConsole},
		{"an address that another entry has", testAddressOfAnother},
		{"a service of ephemeral instances", testEphemeralService},
		{"3000 entries", testMany},
		{"traffic", testTraffic},
		{"health checks", testHealthCheck},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, s) })
	}
}

func testConformance(t *testing.T, s *server) {
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		root, r := s.connect(t)
		return registrytest.Fixture{
			Connector: r, AddressIsIdentity: true, HoldsBack: true,
			Seed: func(t *testing.T, service, id string) {
				s.write(t, http.MethodPost, foreign(root, service, id, 1))
				registrytest.Eventually(t, "the foreign entry", func() string {
					return registrytest.Unless(len(registrytest.List(t, r)) == 1, "it is not listed")
				})
			},
			Break: s.Kill, Mend: s.Restart, Hang: s.Hang, Resume: s.Resume,
		}
	})
}

// awaitHeld waits until the only entry gets no callers.
func awaitHeld(t *testing.T, what string, r registry.Connector) {
	t.Helper()
	registrytest.Eventually(t, what, func() string {
		return registrytest.Unless(registrytest.Only(t, r).Weight == 0, "the entry still gets callers")
	})
}

// testConsole changes an entry as Nacos's console does. The console stores its settings
// separately from the instance, and they override what is registered later.
func testConsole(t *testing.T, s *server) {
	root, r := s.connect(t)
	want := registrytest.Entry("a")
	registrytest.Put(t, r, want)
	s.write(t, http.MethodPut, url.Values{
		"namespaceId": {root.Namespace}, "serviceName": {"web"}, "ip": {"10.0.0.1"}, "port": {"8080"}, "ephemeral": {"false"}, "weight": {"3"},
		"enabled": {"false"}, "metadata": {`{"zone":"z","more":"x"}`},
	})
	awaitHeld(t, "the console's change", r)
	if have := registrytest.Put(t, r, want); len(have) != 1 || !have[0].Same(want) {
		t.Errorf("after the repair: %+v", have)
	}
	// The next Pod of that address starts without this one's settings.
	registrytest.Remove(t, r, want)
	next := registrytest.Entry("b")
	next.Metadata = nil
	if have := registrytest.Put(t, r, next); len(have) != 1 || !have[0].Same(next) {
		t.Errorf("the next instance: %+v", have)
	}
}

// testAddressOfAnother refuses to overwrite an existing entry of Nacos at that address.
func testAddressOfAnother(t *testing.T, s *server) {
	root, r := s.connect(t)
	s.write(t, http.MethodPost, foreign(root, "web", "theirs", 1))
	ours := registrytest.Entry("a")
	registrytest.Put(t, r, ours)
	registrytest.Eventually(t, "both entries", func() string {
		return registrytest.Unless(len(registrytest.List(t, r)) == 2, "they are not listed")
	})
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
	root, r := s.connect(t)
	theirs := foreign(root, "web", "theirs", 1)
	theirs.Set("ephemeral", "true")
	s.write(t, http.MethodPost, theirs)
	err := registrytest.TryPut(t, r, registrytest.Entry("a"))
	registrytest.CheckRefused(t, "a persistent instance", err, "a", registry.ErrPermanent, "ephemeral")
}

// testHealthCheck makes Nacos check a port where nobody listens.
func testHealthCheck(t *testing.T, s *server) {
	check := func(checks bool) {
		s.checks = checks
		if err := s.ready(registrytest.Bounded(t)); err != nil {
			t.Error(err)
		}
	}
	check(true)
	defer check(false)
	_, r := s.connect(t)
	e := registrytest.Entry("a")
	e.Address, e.Port = "127.0.0.1", 1
	registrytest.Put(t, r, e)
	awaitHeld(t, "a failed health check", r)
	e.Version = registrytest.Only(t, r).Version
	registrytest.CheckRefused(t, "an unhealthy instance", registrytest.TryPut(t, r, e), "a", registry.ErrTransient)
}

// TestUsers logs in, and reports what is wrong if that fails. This server answers a
// wrong password with an internal error.
func TestUsers(t *testing.T) {
	s := start(t, map[string]string{"nacos.core.auth.enabled": "true", "nacos.core.auth.admin.enabled": "true"})
	servers.Must(t, s.HTTP, http.MethodPost, "/nacos/v3/auth/user/admin?password=right-one", nil, nil)
	secret := func(user, password string) map[string][]byte {
		return map[string][]byte{nacos.KeyUsername: []byte(user), nacos.KeyPassword: []byte(password + "\n")}
	}
	first := s.connectWith(t, nacos.Options{Secret: secret("nacos", "right-one")})
	registrytest.Eventually(t, "Nacos to know the new user", func() string {
		return registrytest.Unless(first.Ping(registrytest.Bounded(t)) == nil, "the login fails")
	})
	for name, test := range map[string]struct {
		secret map[string][]byte
		want   error
	}{
		"right": {secret("nacos", "right-one"), nil}, "wrong": {secret("nacos", registrytest.Secret), registry.ErrTransient},
		"unknown": {secret("nobody", registrytest.Secret), registry.ErrPermanent}, "none": {nil, registry.ErrPermanent},
	} {
		r := s.connectWith(t, nacos.Options{Secret: test.secret})
		registrytest.Check(t, name+": ping", r.Ping(registrytest.Bounded(t)), test.want)
		registrytest.Check(t, name+": apply", registrytest.TryPut(t, r, registrytest.Entry(name)), test.want)
	}
}

// testMany writes 3000 entries.
func testMany(t *testing.T, s *server) {
	_, r := s.connect(t)
	var all []registry.Entry
	for n := range 3000 {
		e := registrytest.Entry(fmt.Sprintf("web-%04d", n))
		e.Address = fmt.Sprintf("10.1.%d.%d", n/250, n%250+1)
		all = append(all, e)
	}
	if have := registrytest.Put(t, r, all...); len(have) != len(all) {
		t.Errorf("%d entries are listed", len(have))
	}
}

// testTraffic rolls instances under a caller that polls Nacos's client API, as clients
// without a subscription do.
func testTraffic(t *testing.T, s *server) {
	const period = 500 * time.Millisecond
	root, r := s.connect(t)
	registrytest.Rollout{Connector: r, Propagation: 2 * period}.Run(t, func(t *testing.T) func() []string {
		return registrytest.Follow(t, period, func(ctx context.Context) (addresses []string, err error) {
			var said struct {
				Data []struct {
					IP   string
					Port int
				}
			}
			_, err = s.Do(ctx, http.MethodGet, "/nacos/v3/client/ns/instance/list?"+url.Values{
				"namespaceId": {root.Namespace}, "serviceName": {"web"}, "healthyOnly": {"true"}}.Encode(), nil, &said)
			for _, i := range said.Data {
				addresses = append(addresses, fmt.Sprintf("%s:%d", i.IP, i.Port))
			}
			return addresses, err
		})
	})
}
