// SPDX-License-Identifier: Apache-2.0

package consul_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/consul"
	"github.com/usher-dev/usher/internal/registration/registry/credentials"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/certs"
	"github.com/usher-dev/usher/test/registries/internal/hung"
	"github.com/usher-dev/usher/test/registries/internal/traffic"
	"github.com/usher-dev/usher/test/registries/internal/try"
)

func TestConformance(t *testing.T) {
	s := start(t, nil)
	registrytest.Run(t, func(t *testing.T) registrytest.Subject {
		s.empty(t)
		return registrytest.Subject{
			Connector: s.connect(t, consul.Options{Datacenter: datacenter}),
			HoldsBack: true,
			Seed: func(t *testing.T, service, id string) {
				s.put(t, "/v1/catalog/register", catalog(consul.NodeName(service, id), service, id, "passing"))
			},
			Break: s.Break,
			Mend:  s.Mend,
		}
	})
}

// TestTraffic rolls instances under a caller that follows Consul's health API with
// blocking queries, as Consul's clients do.
func TestTraffic(t *testing.T) {
	s := start(t, nil)
	service := traffic.Service{Connector: s.connect(t, consul.Options{}), Name: "web", Propagation: time.Second}
	traffic.Roll(t, service, func(t *testing.T) func() []string {
		var known atomic.Pointer[[]string]
		known.Store(&[]string{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			index := ""
			for ctx.Err() == nil {
				addresses, next, err := s.passing(ctx, "web", index)
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("the caller: %v", err)
					}
					return
				}
				known.Store(&addresses)
				index = next
			}
		}()
		t.Cleanup(func() { cancel(); <-ended })
		return func() []string { return *known.Load() }
	})
}

// TestNothingStays removes only an entry, its check and its node.
func TestNothingStays(t *testing.T) {
	s := start(t, nil)
	r := s.connect(t, consul.Options{})
	s.put(t, "/v1/catalog/register", catalog("agent-1", "web", "web", "passing"))
	try.Apply(t, r, registry.Put, try.Instance("a"))
	entries := try.List(t, r)
	if len(entries) != 2 || entries[0].ID != "a" || entries[1].ID != "web@agent-1" || entries[1].Owner != (registry.Owner{}) {
		t.Fatalf("listed: %+v", entries)
	}
	if names := s.nodes(t); !slices.Contains(names, consul.NodeName("web", "a")) {
		t.Errorf("the catalog has the nodes %v", names)
	}
	try.Apply(t, r, registry.Remove, entries[0])
	if names := s.nodes(t); !slices.Equal(names, []string{"agent-1"}) {
		t.Errorf("the nodes %v are left, want agent-1 alone", names)
	}
}

// TestCriticalIsSeenAndRepaired lets somebody disable an entry: callers do not get it,
// so it must be repaired.
func TestCriticalIsSeenAndRepaired(t *testing.T) {
	s := start(t, nil)
	r := s.connect(t, consul.Options{})
	want := try.Instance("a")
	node := consul.NodeName("web", "a")
	for name, check := range map[string]map[string]any{
		"our check": {"Node": node, "CheckID": "usher", "Name": "Usher", "Status": "critical",
			"ServiceID": "a", "ServiceName": "web"},
		"a check of the node": {"Node": node, "CheckID": "maintenance", "Name": "maintenance", "Status": "critical"},
	} {
		entries := try.List(t, r)
		if len(entries) == 1 {
			want.Version = entries[0].Version
		}
		try.Apply(t, r, registry.Put, want)
		before := try.List(t, r)[0]
		s.put(t, "/v1/catalog/register", map[string]any{"Node": node, "Address": "10.0.0.1", "SkipNodeUpdate": true, "Check": check})
		off := try.List(t, r)[0]
		if off.Weight != 0 || off.Version == before.Version {
			t.Errorf("%s: the entry is %+v, before %+v", name, off, before)
		}
		want.Version = off.Version
		try.Apply(t, r, registry.Put, want)
		if addresses, _, err := s.passing(try.Bounded(t), "web", ""); err != nil || len(addresses) != 1 {
			t.Errorf("%s: callers get %v, %v after the repair", name, addresses, err)
		}
		if have := try.List(t, r)[0]; !have.Same(want) {
			t.Errorf("%s: the entry is %+v after the repair", name, have)
		}
	}
}

func TestDatacenter(t *testing.T) {
	s := start(t, nil)
	if err := s.connect(t, consul.Options{Datacenter: datacenter}).Ping(try.Bounded(t)); err != nil {
		t.Error(err)
	}
	err := s.connect(t, consul.Options{Datacenter: "nowhere"}).Ping(try.Bounded(t))
	if err == nil || !strings.Contains(err.Error(), "datacenter") {
		t.Errorf("another datacenter: %v", err)
	}
}

const management = "0a3ac8ad-5bb5-4a21-9e3c-3b8a5d4fbd5c"

// TestACL reports what is wrong with a token, and never lists less than there is.
func TestACL(t *testing.T) {
	s := start(t, map[string]any{"acl": map[string]any{
		"enabled": true, "default_policy": "deny", "tokens": map[string]any{"initial_management": management},
	}})
	rules := map[string]string{
		"full":    `service "web" { policy = "write" } node_prefix "usher-" { policy = "write" } node_prefix "" { policy = "read" }`,
		"reader":  `service "web" { policy = "read" } node_prefix "" { policy = "read" }`,
		"partial": `service "web" { policy = "write" } node_prefix "usher-" { policy = "write" }`,
	}
	tokens := map[string]string{"unknown": "7e0ff1f4-0000-4a21-9e3c-3b8a5d4fbd5c", "none": ""}
	for name, text := range rules {
		s.put(t, "/v1/acl/policy", map[string]any{"Name": name, "Rules": text})
		var made struct{ SecretID string }
		if err := s.do(try.Bounded(t), http.MethodPut, "/v1/acl/token",
			map[string]any{"Policies": []any{map[string]any{"Name": name}}}, &made); err != nil {
			t.Fatal(err)
		}
		tokens[name] = made.SecretID
	}
	s.put(t, "/v1/catalog/register", catalog("agent-1", "web", "web", "passing"))
	for name, test := range map[string]struct{ list, apply error }{
		"full": {nil, nil}, "reader": {nil, registry.ErrPermanent}, "partial": {registry.ErrPermanent, registry.ErrPermanent},
		"unknown": {registry.ErrPermanent, registry.ErrPermanent}, "none": {registry.ErrPermanent, registry.ErrPermanent},
	} {
		r := s.connect(t, consul.Options{Secret: token(tokens[name])})
		_, listErr := r.List(try.Bounded(t), "web")
		applyErr := r.Apply(try.Bounded(t), "web", []registry.Change{{Op: registry.Put, Entry: try.Instance(name)}})
		for call, got := range map[string][2]error{"list": {listErr, test.list}, "apply": {applyErr, test.apply}} {
			if !errors.Is(got[0], got[1]) {
				t.Errorf("%s: %s: %v, want %v", name, call, got[0], got[1])
			}
			if got[0] != nil && tokens[name] != "" && strings.Contains(got[0].Error(), tokens[name]) {
				t.Errorf("%s: the error tells the token: %v", name, got[0])
			}
		}
		t.Logf("%s: list: %v; apply: %v", name, listErr, applyErr)
	}
}

// TestACLsAreTurnedOn hides what a connector without a token has seen: the connector
// must not consider it gone.
func TestACLsAreTurnedOn(t *testing.T) {
	s := start(t, nil)
	r := s.connect(t, consul.Options{})
	if err := r.Apply(try.Bounded(t), "web", []registry.Change{{Op: registry.Put, Entry: try.Instance("one")}}); err != nil {
		t.Fatal(err)
	}
	if listed, err := r.List(try.Bounded(t), "web"); err != nil || len(listed) != 1 {
		t.Fatalf("listed: %v, %v", listed, err)
	}
	s.Break(t)
	s.set(t, map[string]any{"acl": map[string]any{
		"enabled": true, "default_policy": "deny", "tokens": map[string]any{"initial_management": management},
	}})
	s.Mend(t)
	for range 2 {
		if listed, err := r.List(try.Bounded(t), "web"); !errors.Is(err, registry.ErrPermanent) {
			t.Errorf("listed without a token: %v, %v; want a permanent error", listed, err)
		}
	}
}

// TestTLS verifies the server's certificate, and presents our own.
func TestTLS(t *testing.T) {
	ours, theirs := certs.New(t), certs.New(t)
	certificate, key := ours.Pair()
	mine, mineKey := ours.Pair()
	s := start(t, map[string]any{
		"verify_incoming": true, "ca_file": certs.File(t, "ca.crt", ours.PEM),
		"cert_file": certs.File(t, "tls.crt", certificate), "key_file": certs.File(t, "tls.key", key),
	})
	for name, test := range map[string]struct {
		secret map[string][]byte
		want   error
		says   string
	}{
		"our certificate": {map[string][]byte{credentials.KeyCA: ours.PEM, credentials.KeyCertificate: mine,
			credentials.KeyPrivateKey: mineKey}, nil, ""},
		"no certificate": {map[string][]byte{credentials.KeyCA: ours.PEM}, registry.ErrTransient, ""},
		"another authority": {map[string][]byte{credentials.KeyCA: theirs.PEM, credentials.KeyCertificate: mine,
			credentials.KeyPrivateKey: mineKey}, registry.ErrTransient, "unknown authority"},
	} {
		err := s.connect(t, consul.Options{Address: s.secure, Secret: test.secret}).Ping(try.Bounded(t))
		if !errors.Is(err, test.want) || test.says != "" && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: ping: %v, want %v", name, err, test.want)
		}
	}
}

// TestHung suspends the server's process for a while.
func TestHung(t *testing.T) {
	s := start(t, nil)
	hung.Test(t, s.Process, s.connect(t, consul.Options{}), registry.Change{Op: registry.Put, Entry: try.Instance("a")})
}
