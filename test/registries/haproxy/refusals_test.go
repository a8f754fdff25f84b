// SPDX-License-Identifier: Apache-2.0

package haproxy_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/haproxy"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/servers"
)

func TestRefusals(t *testing.T) {
	p := startProxy(t)
	c := connect(t, p.tcp())
	e := registrytest.Entry("one")
	heavy := e
	heavy.Weight = 300
	for _, test := range []struct {
		name, service string
		entry         registry.Entry
		words         string
	}{
		{"no backend", "nowhere", e, "add it to the configuration"},
		{"a backend that allows no dynamic servers", "sticky", e, "dynamic load balancing"},
		{"weight", "web", heavy, "limit of 256"},
	} {
		err := c.Apply(registrytest.Bounded(t), test.service, []registry.Change{{Op: registry.Put, Entry: test.entry}})
		registrytest.CheckRefused(t, test.name, err, e.ID, registry.ErrPermanent, test.words)
	}
	if listed, err := c.List(registrytest.Bounded(t), "nowhere"); err != nil || len(listed) != 0 {
		t.Errorf("a service without a backend has %v, %v", listed, err)
	}
	for _, service := range []string{"web;shutdown sessions server web/x", "web\nhelp", "../web", "#3"} {
		_, err := c.List(registrytest.Bounded(t), service)
		registrytest.Check(t, "the service "+service, err, registry.ErrPermanent)
	}
}

// TestLevel uses a read-only socket.
func TestLevel(t *testing.T) {
	p := startProxy(t)
	c := connect(t, fmt.Sprintf("tcp://127.0.0.1:%d", p.observer))
	registrytest.Check(t, "ping", c.Ping(registrytest.Bounded(t)), registry.ErrPermanent, "level admin")
	registrytest.CheckRefused(t, "apply", registrytest.TryPut(t, c, registrytest.Entry("one")), "one", registry.ErrPermanent)
}

// TestRegistrationChanges hands an instance to another Registration: the server gets
// another name, and the instance stays in service throughout.
func TestRegistrationChanges(t *testing.T) {
	p := startProxy(t)
	c := connect(t, p.unix())
	one := registrytest.Start(t, "one")
	registrytest.Put(t, c, one.Entry)
	ended := p.slow(t, 1, 500*time.Millisecond)
	moved := one.Entry
	moved.Owner.Registration = "other"
	registrytest.Eventually(t, "the move", func() string {
		have := registrytest.Put(t, c, moved)[0]
		if have.Owner != moved.Owner {
			t.Fatalf("the entry is %+v", have)
		}
		p.get(t)
		return have.Unsettled
	})
	ended()
}

// TestChecks lets HAProxy itself check the instances' health.
func TestChecks(t *testing.T) {
	p := startProxy(t)
	spec := &usherv1alpha1.HAProxyRegistry{Addresses: []string{p.unix()}, ServerOptions: "check inter 100ms fall 2"}
	c := registrytest.Connect(haproxy.New(spec, nil))(t)
	well, ill := registrytest.Start(t, "well"), registrytest.Start(t, "ill")
	registrytest.Put(t, c, well.Entry, ill.Entry)
	ill.Kill()
	registrytest.Eventually(t, "the check", func() string {
		stat := p.ask(t, "show stat -1 4 -1")
		return registrytest.Unless(strings.Contains(stat, ",DOWN,"), stat)
	})
	for range 10 {
		p.get(t)
	}
}

// TestManyServers adds and removes a thousand servers.
func TestManyServers(t *testing.T) {
	p := startProxy(t)
	c := connect(t, p.tcp())
	registrytest.CheckNone(t, "at the end", registrytest.Remove(t, c, registrytest.PutMany(t, c, 1000)...))
}

// TestTLS uses a runtime API that requires a client certificate. HAProxy 2.6 accepts
// "ssl" for a stats socket but ignores it; a separate section works.
func TestTLS(t *testing.T) {
	p := newProxy(t)
	secure := servers.FreePorts(t, 1)[0]
	authority := registrytest.NewAuthority(t)
	ca, certificate, key := authority.Files()
	// HAProxy finds the key beside the certificate.
	checktest.NoError(t, os.Rename(key, certificate+".key"))
	p.more = fmt.Sprintf("listen api\n mode tcp\n bind 127.0.0.1:%d ssl crt %s ca-file %s verify required\n server api unix@%s\n",
		secure, certificate, ca, p.socket)
	p.start(t)
	registrytest.CheckTLS(t, authority, registry.ErrPermanent, func(secret map[string][]byte) (*haproxy.Registry, error) {
		return haproxy.New(&usherv1alpha1.HAProxyRegistry{Addresses: []string{fmt.Sprintf("tls://127.0.0.1:%d", secure)}}, secret)
	})
}
