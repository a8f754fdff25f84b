// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/dns"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/fetch"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

// resolve returns what callers get: the SRV records of the service web, and the addresses
// of their targets.
func (b *bind) resolve(ctx context.Context, zone string) (targets []string, err error) {
	answer, err := b.query(ctx, "_"+web+"._tcp."+zone+".", mdns.TypeSRV)
	if err != nil {
		return nil, err
	}
	for _, rr := range answer.Answer {
		srv := rr.(*mdns.SRV)
		addresses, err := b.query(ctx, srv.Target, mdns.TypeA)
		if err != nil {
			return nil, err
		}
		for _, rr := range addresses.Answer {
			targets = append(targets, fmt.Sprintf("%s:%d", rr.(*mdns.A).A, srv.Port))
		}
	}
	return targets, nil
}

// TestTraffic rolls instances under a caller that resolves again when the TTL is over, and
// not before. The propagation is the TTL, and a little for a resolution in progress.
func TestTraffic(t *testing.T) {
	b := startBind(t, 1)
	rollout := registrytest.Rollout{Connector: b.connect(t, zone(0)), Propagation: ttl*time.Second + 300*time.Millisecond}
	rollout.Run(t, func(t *testing.T) func() []string {
		return registrytest.Follow(t, ttl*time.Second, func(ctx context.Context) ([]string, error) { return b.resolve(ctx, zone(0)) })
	})
}

// TestGoResolver: Go's own resolver finds the instances.
func TestGoResolver(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	one, two := registrytest.Entry("one"), registrytest.Entry("two")
	two.Address = "fd00::2"
	registrytest.Put(t, c, one, two)
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, b.address())
	}}
	_, srvs, err := resolver.LookupSRV(registrytest.Bounded(t), web, "tcp", zone(0))
	registrytest.NoError(t, err)
	var found []string
	for _, srv := range srvs {
		addresses, err := resolver.LookupHost(registrytest.Bounded(t), srv.Target)
		registrytest.NoError(t, err)
		found = append(found, fmt.Sprintf("%v %d weight %d", addresses, srv.Port, srv.Weight))
	}
	slices.Sort(found)
	want := []string{"[10.0.0.1] 8080 weight 10", "[fd00::2] 8080 weight 10"}
	if !slices.Equal(found, want) {
		t.Errorf("the resolver finds %q, want %q", found, want)
	}
}

func TestConformance(t *testing.T) {
	// All tests share one server; each has its own zone.
	b := startBind(t, 32)
	next := 0
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		z := zone(next)
		next++
		return registrytest.Fixture{
			Connector: b.connect(t, z),
			Seed: func(t *testing.T, service, id string) {
				b.insert(t, z, "_"+service+"._tcp."+z+". 1 IN SRV 0 1 1 "+id+"."+service+"."+z+".",
					id+"."+service+"."+z+". 1 IN A 192.0.2.1")
			},
			Break: b.Kill, Mend: b.Restart, Hang: b.Hang, Resume: b.Resume,
		}
	})
}

const (
	// secret belongs to a publicly known key.
	secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I="
	ttl    = 1
	web    = "web"
)

// bind is a real named.
type bind struct {
	*run.Process
	folder string
	port   int
}

const zoneConfig = `  zone "%[1]s" { type primary; file "%[2]s/%[1]s"; update-policy { %[3]s }; %[4]s };
`

const policy = "grant usher zonesub A AAAA SRV TXT; grant usher512 zonesub A AAAA SRV TXT;"

const zoneFile = `$TTL 1
@ IN SOA ns.test. host.test. 1 60 60 600 1
@ IN NS ns.test.
`

// startBind starts one with zones z0.test to z<n-1>.test, and small.test, which accepts
// no more than three records of a type and name.
func startBind(t *testing.T, zones int) *bind {
	t.Helper()
	root := servers.DebianProgram(t, "bind9")
	b := &bind{folder: t.TempDir(), port: servers.FreePorts(t, 1)[0]}
	list := fmt.Sprintf(zoneConfig, "small.test", b.folder, policy, "max-records-per-type 3;")
	names := []string{"small.test"}
	for n := range zones {
		names = append(names, zone(n))
		list += fmt.Sprintf(zoneConfig, zone(n), b.folder, policy, "")
	}
	for _, name := range names {
		b.write(t, name, zoneFile)
	}
	config, err := os.ReadFile(filepath.Join("testdata", "named.conf"))
	registrytest.NoError(t, err)
	b.write(t, "named.conf", fmt.Sprintf(string(config), secret, b.folder, b.port, list))
	b.Process = servers.Start(t, run.Spec{
		Name: "named", Path: filepath.Join(root, "usr/sbin/named"), Ready: b.ready,
		Args: []string{"-g", "-n", "1", "-c", filepath.Join(b.folder, "named.conf")},
		Env:  []string{fetch.LibraryPath(root)},
	})
	return b
}

func zone(n int) string { return fmt.Sprintf("z%d.test", n) }

func (b *bind) write(t *testing.T, name, text string) {
	t.Helper()
	registrytest.NoError(t, os.WriteFile(filepath.Join(b.folder, name), []byte(text), 0o600))
}

// ready returns nil once it knows its zones.
func (b *bind) ready(ctx context.Context) error {
	answer, err := b.query(ctx, "z0.test.", mdns.TypeSOA)
	if err != nil {
		return err
	}
	if len(answer.Answer) == 0 {
		return errors.New("it does not know its zone")
	}
	return nil
}

func (b *bind) address() string { return fmt.Sprintf("127.0.0.1:%d", b.port) }

// query queries as any caller would, without a key.
func (b *bind) query(ctx context.Context, name string, kind uint16) (*mdns.Msg, error) {
	request := new(mdns.Msg)
	request.SetQuestion(name, kind)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, _, err := (&mdns.Client{Net: "tcp"}).ExchangeContext(ctx, request, b.address())
	return answer, err
}

// insert adds records as a client other than Usher, with Usher's key.
func (b *bind) insert(t *testing.T, zone string, records ...string) {
	t.Helper()
	b.update(t, zone, (*mdns.Msg).Insert, records)
}

// remove deletes records in the same way.
func (b *bind) remove(t *testing.T, zone string, records ...string) {
	t.Helper()
	b.update(t, zone, (*mdns.Msg).Remove, records)
}

func (b *bind) update(t *testing.T, zone string, do func(*mdns.Msg, []mdns.RR), records []string) {
	t.Helper()
	request := new(mdns.Msg)
	request.SetUpdate(zone + ".")
	for _, text := range records {
		rr, err := mdns.NewRR(text)
		registrytest.NoError(t, err)
		do(request, []mdns.RR{rr})
	}
	request.SetTsig("usher.", mdns.HmacSHA256, 300, time.Now().Unix())
	client := &mdns.Client{Net: "tcp", TsigSecret: map[string]string{"usher.": secret}}
	answer, _, err := client.ExchangeContext(registrytest.Bounded(t), request, b.address())
	if err != nil || answer.Rcode != mdns.RcodeSuccess {
		t.Fatalf("update: %v, %v", answer, err)
	}
}

func credentials(name string) map[string][]byte {
	return map[string][]byte{dns.KeyName: []byte(name), dns.KeySecret: []byte(secret)}
}

func (b *bind) connect(t *testing.T, zone string) registry.Connector {
	t.Helper()
	return registrytest.Connect(t, dns.New, dns.Options{Server: b.address(), Zone: zone, TTL: ttl, Secret: credentials("usher")})
}
