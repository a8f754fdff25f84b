// SPDX-License-Identifier: Apache-2.0

package registries_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/xds"
	"github.com/usher-dev/usher/test/cluster/clustertest"
	"github.com/usher-dev/usher/test/cluster/pki"
)

// heed is how long clients may take to learn of a change.
const heed = time.Second

// join starts a server and waits for calls to it.
func (m *mesh) join(t *testing.T, n int, port int32) *greeter {
	t.Helper()
	g := newGreeter(t, n, port)
	put(t, m, registry.Put, g.entry)
	g.hit(t)
	return g
}

// leave removes a server, waits, and ends it.
func (m *mesh) leave(t *testing.T, g *greeter, wait time.Duration) {
	t.Helper()
	put(t, m, registry.Remove, g.entry)
	if listed, err := m.List(bounded(t), "greeter"); err != nil || strings.Contains(ids(listed), g.entry.ID) {
		t.Fatalf("listed: %s, %v", ids(listed), err)
	}
	if wait > 0 {
		<-time.After(wait) // This delay is under test.
	}
	g.end()
}

// hold takes a server out of service, waits, and ends it; its entry stays.
func (m *mesh) hold(t *testing.T, g *greeter, wait time.Duration) {
	t.Helper()
	held := g.entry
	held.Weight = 0
	put(t, m, registry.Put, held)
	if listed, err := m.List(bounded(t), "greeter"); err != nil || !strings.Contains(ids(listed), g.entry.ID) {
		t.Fatalf("listed: %s, %v", ids(listed), err)
	}
	<-time.After(wait) // This delay is under test.
	g.end()
}

func ids(entries []registry.Entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, e.ID)
	}
	return strings.Join(all, " ")
}

// three are the first servers.
func (m *mesh) three(t *testing.T) []*greeter {
	t.Helper()
	var all []*greeter
	for n := range 3 {
		g := newGreeter(t, n+1, 0)
		put(t, m, registry.Put, g.entry)
		all = append(all, g)
	}
	return all
}

// TestXDSTraffic rolls servers, updates them in place and scales them in, under
// clients with gRPC's own xDS.
func TestXDSTraffic(t *testing.T) {
	m := newMesh(t, shared)
	all := m.three(t)
	c := dialXDS(t, plainBootstrap(m.address), m.target())
	c.reaches(t, all...)
	l, stop := c.talk(t)
	for n, old := range all { // Others join.
		old.hit(t)
		all[n] = m.join(t, 11+n, 0)
		m.leave(t, old, heed)
	}
	for n, old := range all { // The same come back.
		m.leave(t, old, heed)
		all[n] = m.join(t, 11+n, old.entry.Port)
	}
	for n, old := range all { // The same, without leaving the list.
		old.hit(t)
		m.hold(t, old, heed)
		all[n] = m.join(t, 11+n, old.entry.Port)
	}
	for _, old := range all[1:] {
		m.leave(t, old, heed)
	}
	all[0].hit(t)
	l.nothingLost(t, stop)

	// Without the wait, calls must be lost, or the traffic proves nothing.
	l, stop = c.talk(t)
	for n := 0; n < 10 && l.lost.Load() == 0; n++ {
		next := m.join(t, 31+n, 0)
		m.leave(t, all[0], 0)
		all[0] = next
	}
	stop()
	if l.lost.Load() == 0 {
		t.Error("no call was lost without a wait")
	} else {
		t.Logf("without a wait: %d of %d calls lost, the first by: %v", l.lost.Load(), l.sent.Load(), *l.first.Load())
	}
}

// TestXDSRestart ends the xDS server under traffic and starts another one.
func TestXDSRestart(t *testing.T) {
	m := newMesh(t, shared)
	all := m.three(t)
	c := dialXDS(t, plainBootstrap(m.address), m.target())
	c.reaches(t, all...)
	l, stop := c.talk(t)
	for range 3 {
		m.stop()
		all[0].hit(t)
		// One client starts while there is no server.
		late := dialXDS(t, plainBootstrap(m.address), m.target())
		if err := late.call(bounded(t), false); err == nil {
			t.Error("a client that starts without a server is told of instances")
		} else {
			t.Logf("a client that starts without a server: %v", err)
		}
		// Another server joins meanwhile.
		joins := newGreeter(t, 20+len(all), 0)
		if err := m.Apply(bounded(t), "greeter", []registry.Change{{Op: registry.Put, Entry: joins.entry}}); err != nil {
			t.Fatal(err)
		}
		m.replica = startXDS(t, shared.RESTConfig(), xds.ServerOptions{Address: m.address})
		m.connect(t)
		joins.hit(t)
		all = append(all, joins)
		late.reaches(t, all...)
	}
	m.leave(t, all[1], heed)
	all[0].hit(t)
	l.nothingLost(t, stop)
}

// TestXDSWithoutAPIServer keeps serving while the API server is down.
func TestXDSWithoutAPIServer(t *testing.T) {
	server := clustertest.Start(t)
	m := newMesh(t, server)
	all := m.three(t)
	c := dialXDS(t, plainBootstrap(m.address), m.target())
	c.reaches(t, all...)
	l, stop := c.talk(t)
	if err := server.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	dialXDS(t, plainBootstrap(m.address), m.target()).reaches(t, all...)
	if err := server.StartAPIServer(bounded(t)); err != nil {
		t.Fatal(err)
	}
	m.leave(t, all[2], heed)
	c.reaches(t, all[:2]...)
	l.nothingLost(t, stop)
}

// TestXDSReplicas gives clients two replicas.
func TestXDSReplicas(t *testing.T) {
	m := newMesh(t, shared)
	all := m.three(t)
	other := freePort(t)
	startXDS(t, shared.RESTConfig(), xds.ServerOptions{Address: other})
	mine, theirs := dialXDS(t, plainBootstrap(m.address), m.target()), dialXDS(t, plainBootstrap(other), m.target())
	mine.reaches(t, all...)
	theirs.reaches(t, all...)
	put(t, m, registry.Remove, all[0].entry, all[1].entry)
	mine.reaches(t, all[2])
	theirs.reaches(t, all[2])
}

// TestXDSEmpty tells clients at once when a service has no instance, and when it has
// one again.
func TestXDSEmpty(t *testing.T) {
	m := newMesh(t, shared)
	c := dialXDS(t, plainBootstrap(m.address), m.target())
	began := time.Now()
	err := c.call(bounded(t), false)
	if err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("a call of nobody returned %v after %s", err, time.Since(began))
	}
	t.Logf("a call of nobody: %v", err)
	g := newGreeter(t, 1, 0)
	for range 2 {
		put(t, m, registry.Put, g.entry)
		c.reaches(t, g)
		put(t, m, registry.Remove, g.entry)
		(&env{T: t}).eventually("the end of the last one", func() string {
			if c.call(bounded(t), false) == nil {
				return "is not heard of"
			}
			return ""
		})
	}
}

// TestXDSByHand respects slices that others write, and their conditions.
func TestXDSByHand(t *testing.T) {
	m := newMesh(t, shared)
	ready, draining := newGreeter(t, 1, 0), newGreeter(t, 2, 0)
	yes, no := true, false
	m.seed(t, "ready", "greeter", discoveryv1.Endpoint{Addresses: []string{ready.entry.Address}}, ready.entry.Port)
	m.seed(t, "draining", "greeter", discoveryv1.Endpoint{Addresses: []string{draining.entry.Address},
		Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}}, draining.entry.Port)
	c := dialXDS(t, plainBootstrap(m.address), m.target())
	c.reaches(t, ready)
	for range 100 {
		if err := c.call(bounded(t), false); err != nil {
			t.Fatal(err)
		}
	}
	if n := draining.hits.Load(); n > 0 {
		t.Errorf("%d calls reached one that drains", n)
	}
}

// TestXDSThousands logs how long many entries take.
func TestXDSThousands(t *testing.T) {
	m := newMesh(t, shared)
	g := newGreeter(t, 1, 0)
	c := dialXDS(t, plainBootstrap(m.address), m.target())
	put(t, m, registry.Put, g.entry)
	c.reaches(t, g)
	var changes []registry.Change
	for n := range 3000 {
		changes = append(changes, registry.Change{Op: registry.Put, Entry: member(1000 + n)})
	}
	began := time.Now()
	if err := m.Apply(bounded(t), "greeter", changes); err != nil {
		t.Fatal(err)
	}
	wrote := time.Since(began)
	entries, err := m.List(bounded(t), "greeter")
	if err != nil || len(entries) != 3001 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	t.Logf("3000 entries: written in %s, served %s later", wrote, time.Since(began)-wrote)
	put(t, m, registry.Remove, g.entry)
	began = time.Now()
	before := g.hits.Load()
	(&env{T: t}).eventually("a client of thousands", func() string {
		now := g.hits.Load()
		ctx, cancel := bounded(t), func() {}
		defer cancel()
		_ = c.call(ctx, false)
		if g.hits.Load() > now {
			return "has not heard of a removal"
		}
		return ""
	})
	t.Logf("a client of 3000 entries has heard of a removal after %s, and %d calls", time.Since(began), g.hits.Load()-before)
}

// TestXDSCertificates serves only clients with a certificate.
func TestXDSCertificates(t *testing.T) {
	dir := t.TempDir()
	authority, err := pki.NewAuthority("mesh", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	pair := func(name string, pair pki.Pair, err error) (cert, key string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return write(name+".crt", pair.Cert), write(name+".key", pair.Key)
	}
	ca := write("ca.crt", authority.PEM())
	server, err := authority.Server("usher", time.Now(), "127.0.0.1")
	serverCert, serverKey := pair("server", server, err)
	user, err := authority.Client("app", time.Now())
	userCert, userKey := pair("user", user, err)

	address := freePort(t)
	m := meshOf(t, shared, startXDS(t, shared.RESTConfig(), xds.ServerOptions{Address: address,
		TLS: xds.TLSFiles{Certificate: serverCert, Key: serverKey, ClientCA: ca}}), address)
	all := m.three(t)
	known := `{"type":"tls","config":{"ca_certificate_file":"` + ca + `","certificate_file":"` + userCert + `","private_key_file":"` + userKey + `"}}`
	dialXDS(t, bootstrap(address, known), m.target()).reaches(t, all...)
	for who, credentials := range map[string]string{
		"no certificate": `{"type":"tls","config":{"ca_certificate_file":"` + ca + `"}}`,
		"plain text":     `{"type":"insecure"}`,
	} {
		err := dialXDS(t, bootstrap(address, credentials), m.target()).call(bounded(t), false)
		if err == nil {
			t.Errorf("%s is served", who)
		}
		t.Logf("%s: %v", who, err)
	}

	// A replaced certificate is used at once.
	next, err := pki.NewAuthority("next", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server, err = next.Server("usher", time.Now(), "127.0.0.1")
	pair("server", server, err)
	nextCA := write("next.crt", next.PEM())
	dialXDS(t, bootstrap(address, strings.Replace(known, ca, nextCA, 1)), m.target()).reaches(t, all...)
}

// TestXDSWeights checks what the documents say about round_robin, which the cluster
// requests: it ignores weights.
func TestXDSWeights(t *testing.T) {
	m := newMesh(t, shared)
	light, heavy := newGreeter(t, 1, 0), newGreeter(t, 2, 0)
	light.entry.Weight, heavy.entry.Weight = 1, 3
	put(t, m, registry.Put, light.entry, heavy.entry)
	c := dialXDS(t, plainBootstrap(m.address), m.target())
	c.reaches(t, light, heavy)
	before := light.hits.Load() - heavy.hits.Load()
	for range 100 {
		if err := c.call(bounded(t), false); err != nil {
			t.Fatal(err)
		}
	}
	if more := light.hits.Load() - heavy.hits.Load() - before; more < -2 || more > 2 {
		t.Errorf("the one of less weight got %d more of 100 calls", more)
	}
}
