// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/nacos"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/hung"
	"github.com/usher-dev/usher/test/registries/internal/try"
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
		{"what the console said is undone", testConsole},
		{"the address of another", testAddressOfAnother},
		{"a service of ephemeral instances", testEphemeralService},
		{"3000 entries", testMany},
		{"traffic", testTraffic},
		{"health checks", testHealthCheck},
		{"hung", testHung},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, s) })
	}
}

func testConformance(t *testing.T, s *server) {
	registrytest.Run(t, func(t *testing.T) registrytest.Subject {
		root := s.root()
		r := s.connect(t, nacos.Options{Root: root})
		return registrytest.Subject{
			Connector: r, AddressIsIdentity: true, HoldsBack: true,
			Seed: func(t *testing.T, service, id string) {
				s.must(t, http.MethodPost, instancePath, foreign(root, service, id, 1))
				try.Eventually(t, "the foreign entry", func() bool { return len(try.List(t, r)) == 1 })
			},
			Break: func(t *testing.T) {
				if err := s.Kill(); err != nil {
					t.Fatal(err)
				}
			},
			Mend: func(t *testing.T) {
				if err := s.Restart(try.Bounded(t)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// testConsole changes an entry as Nacos's console does. The console stores its settings
// separately from the instance, and they override what is registered later.
func testConsole(t *testing.T, s *server) {
	root := s.root()
	r := s.connect(t, nacos.Options{Root: root})
	want := try.Instance("a")
	try.Apply(t, r, registry.Put, want)
	s.must(t, http.MethodPut, instancePath, url.Values{
		"namespaceId": {root.Namespace}, "serviceName": {"web"}, "ip": {"10.0.0.1"}, "port": {"8080"}, "ephemeral": {"false"}, "weight": {"3"},
		"enabled": {"false"}, "metadata": {`{"zone":"z","more":"x"}`},
	})
	try.Eventually(t, "the console's change", func() bool { return try.List(t, r)[0].Weight == 0 })
	want.Version = try.List(t, r)[0].Version
	try.Apply(t, r, registry.Put, want)
	if have := try.List(t, r); len(have) != 1 || !have[0].Same(want) {
		t.Errorf("after the repair: %+v", have)
	}
	// The next Pod of that address starts without this one's settings.
	want.Version = try.List(t, r)[0].Version
	try.Apply(t, r, registry.Remove, want)
	next := try.Instance("b")
	next.Metadata = nil
	try.Apply(t, r, registry.Put, next)
	if have := try.List(t, r); len(have) != 1 || !have[0].Same(next) {
		t.Errorf("the next instance: %+v", have)
	}
}

// testAddressOfAnother refuses to overwrite an existing entry of Nacos at that address.
func testAddressOfAnother(t *testing.T, s *server) {
	root := s.root()
	r := s.connect(t, nacos.Options{Root: root})
	s.must(t, http.MethodPost, instancePath, foreign(root, "web", "theirs", 1))
	ours := try.Instance("a")
	try.Apply(t, r, registry.Put, ours)
	try.Eventually(t, "both entries", func() bool { return len(try.List(t, r)) == 2 })
	for port, mark := range map[int32]error{1: registry.ErrForeign, 8080: registry.ErrConflict} {
		e := try.Instance("b")
		if e.Port = port; port == 1 {
			e.Address = "192.0.2.1"
		}
		err := r.Apply(try.Bounded(t), "web", []registry.Change{{Op: registry.Put, Entry: e}})
		if byID, rest := registry.ChangeErrors(err); rest != nil || !errors.Is(byID["b"], mark) {
			t.Errorf("port %d: %v, want %v", port, err, mark)
		}
	}
	// In one batch, the address passes on.
	ours.Version = try.List(t, r)[0].Version
	err := r.Apply(try.Bounded(t), "web", []registry.Change{
		{Op: registry.Put, Entry: try.Instance("b")}, {Op: registry.Remove, Entry: ours}})
	if err != nil || try.List(t, r)[0].ID != "b" {
		t.Errorf("%v; listed: %+v", err, try.List(t, r))
	}
}

// testEphemeralService reports that applications register themselves.
func testEphemeralService(t *testing.T, s *server) {
	root := s.root()
	theirs := foreign(root, "web", "theirs", 1)
	theirs.Set("ephemeral", "true")
	s.must(t, http.MethodPost, instancePath, theirs)
	err := s.connect(t, nacos.Options{Root: root}).Apply(try.Bounded(t), "web", []registry.Change{{Op: registry.Put, Entry: try.Instance("a")}})
	if byID, rest := registry.ChangeErrors(err); rest != nil || !errors.Is(byID["a"], registry.ErrPermanent) ||
		!strings.Contains(err.Error(), "ephemeral") {
		t.Errorf("%v, want a permanent error about ephemeral instances", err)
	}
}

// testHealthCheck makes Nacos check a port where nobody listens.
func testHealthCheck(t *testing.T, s *server) {
	root := s.root()
	check := func(checks bool) {
		s.checks = checks
		if err := s.ready(try.Bounded(t)); err != nil {
			t.Error(err)
		}
	}
	check(true)
	defer check(false)
	r := s.connect(t, nacos.Options{Root: root})
	e := try.Instance("a")
	e.Address, e.Port = "127.0.0.1", 1
	try.Apply(t, r, registry.Put, e)
	try.Eventually(t, "Nacos to hold the entry back", func() bool { return try.List(t, r)[0].Weight == 0 })
	e.Version = try.List(t, r)[0].Version
	err := r.Apply(try.Bounded(t), "web", []registry.Change{{Op: registry.Put, Entry: e}})
	if byID, rest := registry.ChangeErrors(err); rest != nil || !errors.Is(byID["a"], registry.ErrTransient) {
		t.Errorf("%v, want a transient error of the entry", err)
	}
	t.Log(err)
}

// TestUsers logs in, and reports what is wrong if that fails. This server answers a
// wrong password with an internal error.
func TestUsers(t *testing.T) {
	s := start(t, map[string]string{"nacos.core.auth.enabled": "true", "nacos.core.auth.admin.enabled": "true"})
	s.must(t, http.MethodPost, "/nacos/v3/auth/user/admin", url.Values{"password": {"right-one"}})
	secret := func(user, password string) map[string][]byte {
		return map[string][]byte{nacos.KeyUsername: []byte(user), nacos.KeyPassword: []byte(password + "\n")}
	}
	first := s.connect(t, nacos.Options{Secret: secret("nacos", "right-one")})
	try.Eventually(t, "Nacos to know the new user", func() bool { return first.Ping(try.Bounded(t)) == nil })
	for name, test := range map[string]struct {
		secret map[string][]byte
		want   error
	}{
		"right": {secret("nacos", "right-one"), nil}, "wrong": {secret("nacos", "wr0ng-one"), registry.ErrTransient},
		"unknown": {secret("nobody", "wr0ng-one"), registry.ErrPermanent}, "none": {nil, registry.ErrPermanent},
	} {
		r := s.connect(t, nacos.Options{Secret: test.secret})
		e := try.Instance(name)
		for call, err := range map[string]error{
			"ping": r.Ping(try.Bounded(t)), "apply": r.Apply(try.Bounded(t), "web", []registry.Change{{Op: registry.Put, Entry: e}}),
		} {
			if !errors.Is(err, test.want) || err != nil && strings.Contains(err.Error(), "wr0ng-one") {
				t.Errorf("%s: %s: %v, want %v", name, call, err, test.want)
			}
			t.Logf("%s: %s: %v", name, call, err)
		}
	}
}

// testHung suspends the server's process for a while.
func testHung(t *testing.T, s *server) {
	root := s.root()
	hung.Test(t, s.Process, s.connect(t, nacos.Options{Root: root}), registry.Change{Op: registry.Put, Entry: try.Instance("a")})
}

// testMany writes 3000 entries.
func testMany(t *testing.T, s *server) {
	root := s.root()
	r := s.connect(t, nacos.Options{Root: root})
	var changes []registry.Change
	for n := range 3000 {
		e := try.Instance(fmt.Sprintf("web-%04d", n))
		e.Address = fmt.Sprintf("10.1.%d.%d", n/250, n%250+1)
		changes = append(changes, registry.Change{Op: registry.Put, Entry: e})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Apply(ctx, "web", changes); err != nil {
		t.Fatal(err)
	}
	if have := try.List(t, r); len(have) != len(changes) {
		t.Errorf("%d entries are listed", len(have))
	}
}
