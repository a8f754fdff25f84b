// SPDX-License-Identifier: Apache-2.0

package haproxy_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/haproxy"
	"github.com/usher-dev/usher/test/registries/internal/certs"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/registries/internal/traffic"
	"github.com/usher-dev/usher/test/registries/internal/try"
)

func TestRefusals(t *testing.T) {
	p := startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{p.tcp()}})
	e := traffic.Start(t, "one").Entry
	heavy := e
	heavy.Weight = 300
	for _, test := range []struct {
		name, service string
		entry         registry.Entry
		words         string
	}{
		{"no backend", "nowhere", e, "add it to the configuration"},
		{"a backend that allows no dynamic servers", "sticky", e, "dynamic load balancing"},
		{"weight", web, heavy, "above 256"},
	} {
		err := c.Apply(try.Bounded(t), test.service, []registry.Change{{Op: registry.Put, Entry: test.entry}})
		byID, rest := registry.ChangeErrors(err)
		refusal := byID[e.ID]
		if rest != nil || !errors.Is(refusal, registry.ErrPermanent) || !strings.Contains(refusal.Error(), test.words) {
			t.Errorf("%s: %v, want a permanent refusal with %q", test.name, err, test.words)
		}
	}
	if listed, err := c.List(try.Bounded(t), "nowhere"); err != nil || len(listed) != 0 {
		t.Errorf("a service without a backend has %v, %v", listed, err)
	}
	for _, service := range []string{"web;shutdown sessions server web/x", "web\nhelp", "../web", "#3"} {
		if _, err := c.List(try.Bounded(t), service); !errors.Is(err, registry.ErrPermanent) {
			t.Errorf("service %q: %v, want a permanent error", service, err)
		}
	}
}

// TestLevel uses a read-only socket.
func TestLevel(t *testing.T) {
	p := startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{fmt.Sprintf("tcp://127.0.0.1:%d", p.observer)}})
	if err := c.Ping(try.Bounded(t)); !errors.Is(err, registry.ErrPermanent) || !strings.Contains(err.Error(), "level admin") {
		t.Errorf("ping: %v, want a permanent error that asks for the level", err)
	}
	e := traffic.Start(t, "one").Entry
	err := c.Apply(try.Bounded(t), web, []registry.Change{{Op: registry.Put, Entry: e}})
	if byID, _ := registry.ChangeErrors(err); !errors.Is(byID[e.ID], registry.ErrPermanent) {
		t.Errorf("apply: %v, want a permanent refusal", err)
	}
}

// TestNoHAProxy finds something else at the address: the frontend.
func TestNoHAProxy(t *testing.T) {
	p := startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{fmt.Sprintf("tcp://127.0.0.1:%d", p.front)}})
	if _, err := c.List(try.Bounded(t), web); !errors.Is(err, registry.ErrPermanent) {
		t.Errorf("list from a frontend: %v, want a permanent error", err)
	}
}

// TestConfiguredServersAreForeign also covers one that has the name of an entry.
func TestConfiguredServersAreForeign(t *testing.T) {
	p := startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{p.unix()}})
	e := traffic.Start(t, "one").Entry
	if _, err := p.ask("add server web/" + e.ID + " 192.0.2.1:1"); err != nil {
		t.Fatal(err)
	}
	listed, err := c.List(try.Bounded(t), web)
	if err != nil || len(listed) != 1 || listed[0].Owner != (registry.Owner{}) || listed[0].Unsettled != "" {
		t.Fatalf("listed is %+v, %v", listed, err)
	}
	err = c.Apply(try.Bounded(t), web, []registry.Change{{Op: registry.Put, Entry: e}})
	if byID, _ := registry.ChangeErrors(err); !errors.Is(byID[e.ID], registry.ErrForeign) {
		t.Errorf("apply: %v, want a foreign entry", err)
	}
}

// TestRegistrationChanges hands an instance to another Registration: the server gets
// another name, and the instance stays in service throughout.
func TestRegistrationChanges(t *testing.T) {
	p := startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{p.unix()}})
	one := traffic.Start(t, "one")
	traffic.Change(t, c, web, registry.Put, one.Entry)
	ends := p.slow(t, 1, 500*time.Millisecond)
	moved := one.Entry
	moved.Owner.Registration = "other"
	traffic.Await(t, "the move", func() string {
		have := traffic.Find(traffic.Change(t, c, web, registry.Put, moved), moved.ID)
		if have == nil || have.Owner != moved.Owner {
			t.Fatalf("the entry is %+v", have)
		}
		if err := traffic.One(t.Context(), p.client(), p.where("")); err != nil {
			t.Errorf("in the meantime a request failed: %v", err)
		}
		return have.Unsettled
	})
	if err := <-ends; err != nil {
		t.Errorf("the request in flight was lost: %v", err)
	}
}

// TestChecks lets HAProxy itself check the instances' health.
func TestChecks(t *testing.T) {
	p := startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{p.unix()}, ServerOptions: "check inter 100ms fall 2"})
	well, ill := traffic.Start(t, "well"), traffic.Start(t, "ill")
	traffic.Change(t, c, web, registry.Put, well.Entry, ill.Entry)
	ill.Kill()
	traffic.Await(t, "the check", func() string {
		stat, err := p.ask("show stat web 4 -1")
		if err != nil || !strings.Contains(stat, ",DOWN,") {
			return "nothing is DOWN " + message(err)
		}
		return ""
	})
	for range 10 {
		if err := traffic.One(t.Context(), p.client(), p.where("")); err != nil {
			t.Errorf("a request failed: %v", err)
		}
	}
}

// TestManyServers adds and removes a thousand servers.
func TestManyServers(t *testing.T) {
	p := startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{p.tcp()}})
	var entries []registry.Entry
	for n := range 1000 {
		e := registry.Entry{
			ID: fmt.Sprintf("demo.web-%04d.00000000", n), Address: "127.0.0.1", Port: int32(1000 + n), Weight: 1,
			Owner: registry.Owner{Cluster: "here", Namespace: "demo", Registration: "web", PodUID: fmt.Sprintf("00000000-%d", n)},
		}
		e.Owner.Pod = fmt.Sprintf("web-%04d", n)
		entries = append(entries, e)
	}
	began := time.Now()
	if listed := traffic.Change(t, c, web, registry.Put, entries...); len(listed) != len(entries) {
		t.Errorf("%d are listed, want %d", len(listed), len(entries))
	}
	in := time.Since(began)
	if listed := traffic.Change(t, c, web, registry.Remove, entries...); len(listed) != 0 {
		t.Errorf("%d are left", len(listed))
	}
	t.Logf("%d servers: in after %s, out after another %s", len(entries), in, time.Since(began)-in)
}

// TestTLS uses a runtime API that requires a client certificate. HAProxy 2.6 accepts
// "ssl" for a stats socket but ignores it; a separate section works.
func TestTLS(t *testing.T) {
	p := newProxy(t)
	secure := servers.FreePorts(t, 1)[0]
	authority, stranger := certs.New(t), certs.New(t)
	certificate, key := authority.Pair()
	strange, strangeKey := stranger.Pair()
	both, ca := filepath.Join(p.folder, "both.pem"), filepath.Join(p.folder, "ca.pem")
	for name, data := range map[string][]byte{both: append(certificate, key...), ca: authority.PEM} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.more = fmt.Sprintf("listen api\n mode tcp\n bind 127.0.0.1:%d ssl crt %s ca-file %s verify required\n server api unix@%s\n",
		secure, both, ca, p.socket)
	p.start(t)
	for _, test := range []struct {
		name   string
		secret map[string][]byte
		want   error
	}{
		{"right", map[string][]byte{"ca.crt": authority.PEM, "tls.crt": certificate, "tls.key": key}, nil},
		{"no certificate", map[string][]byte{"ca.crt": authority.PEM}, registry.ErrPermanent},
		{"another's certificate", map[string][]byte{"ca.crt": authority.PEM, "tls.crt": strange, "tls.key": strangeKey}, registry.ErrPermanent},
		{"another CA", map[string][]byte{"ca.crt": stranger.PEM, "tls.crt": certificate, "tls.key": key}, registry.ErrPermanent},
	} {
		c := connect(t, haproxy.Options{Addresses: []string{fmt.Sprintf("tls://127.0.0.1:%d", secure)}, Secret: test.secret})
		err := c.Ping(try.Bounded(t))
		if (test.want == nil) != (err == nil) || !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}
