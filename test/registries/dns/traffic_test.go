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
	"strings"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/usher-dev/usher/internal/checktest"
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
	rollout := registrytest.Rollout{Connector: b.connect(t, zone(0)), Propagation: ttl + 300*time.Millisecond}
	rollout.Run(t, func(t *testing.T) func() []string {
		return registrytest.Follow(t, ttl, func(ctx context.Context) ([]string, error) { return b.resolve(ctx, zone(0)) })
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
	checktest.NoError(t, err)
	var found []string
	for _, srv := range srvs {
		addresses := checktest.Must(resolver.LookupHost(registrytest.Bounded(t), srv.Target))(t)
		found = append(found, fmt.Sprintf("%v %d weight %d", addresses, srv.Port, srv.Weight))
	}
	slices.Sort(found)
	want := []string{"[10.0.0.1] 8080 weight 10", "[fd00::2] 8080 weight 10"}
	checktest.Same(t, "what the resolver finds", want, found)
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
			Seed: func(service, id string) {
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
	ttl    = time.Second
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
	config := checktest.Must(os.ReadFile(filepath.Join("testdata", "named.conf")))(t)
	b.write(t, "named.conf", fmt.Sprintf(string(config), secret, b.folder, b.port, list))
	b.Process = servers.Start(t, run.Spec{
		Name: "named", Path: filepath.Join(root, "usr/sbin/named"), Ready: b.ready,
		Args: []string{"-g", "-n", "1", "-c", filepath.Join(b.folder, "named.conf")},
		Env:  append(os.Environ(), fetch.LibraryPath(root)),
	})
	return b
}

func zone(n int) string { return fmt.Sprintf("z%d.test", n) }

func (b *bind) write(t *testing.T, name, text string) {
	t.Helper()
	checktest.NoError(t, os.WriteFile(filepath.Join(b.folder, name), []byte(text), 0o600))
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
		rr := checktest.Must(mdns.NewRR(text))(t)
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

func (b *bind) connect(t *testing.T, zone string) *dns.Registry {
	t.Helper()
	return b.connectWith(t, zone, credentials("usher"))
}

func (b *bind) connectWith(t *testing.T, zone string, secret map[string][]byte) *dns.Registry {
	t.Helper()
	return registrytest.Connect(dns.New(b.address(), zone, ttl, secret))(t)
}

func TestCredentials(t *testing.T) {
	b := startBind(t, 1)
	wrong, longer := credentials("usher"), credentials("usher512")
	wrong[dns.KeySecret] = []byte("d3Jvbmctd3Jvbmctd3Jvbmctd3Jvbmctd3Jvbmctd3I=")
	longer[dns.KeyAlgorithm] = []byte("hmac-sha512")
	for _, test := range []struct {
		name   string
		secret map[string][]byte
		zone   string
		late   time.Duration
		words  string
	}{
		{"right", credentials("usher"), zone(0), 0, ""},
		{"another algorithm", longer, zone(0), 0, ""},
		{"wrong secret", wrong, zone(0), 0, "BADSIG"},
		{"unknown key", credentials("nobody"), zone(0), 0, "BADKEY"},
		{"wrong algorithm", credentials("usher512"), zone(0), 0, "refuses the TSIG key"},
		{"wrong clock", credentials("usher"), zone(0), 10 * time.Minute, "clocks"},
		{"another zone", credentials("usher"), "other.test", 0, "other.test"},
	} {
		c := b.connectWith(t, test.zone, test.secret)
		c.Now = func() time.Time { return time.Now().Add(-test.late) }
		var mark error
		if test.words != "" {
			mark = registry.ErrPermanent
		}
		err := c.Ping(registrytest.Bounded(t))
		registrytest.Check(t, test.name, err, mark, test.words)
		if strings.Contains(fmt.Sprint(err), string(test.secret[dns.KeySecret])) {
			t.Errorf("%s: the error reveals the secret: %v", test.name, err)
		}
	}
}

// TestMayNotWrite uses keys that the policy does not let write, or none.
func TestMayNotWrite(t *testing.T) {
	b := startBind(t, 1)
	for name, secret := range map[string]map[string][]byte{"reader": credentials("reader"), "no key": nil} {
		c := b.connectWith(t, zone(0), secret)
		registrytest.CheckNone(t, name, registrytest.List(t, c))
		registrytest.Check(t, name, registrytest.TryPut(t, c, registrytest.Entry("one")), registry.ErrPermanent, "update-policy")
	}
}

// TestAnyText uses IDs that are not valid names, and metadata that DNS would escape.
func TestAnyText(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	plain, long, capital := registrytest.Entry("one"), registrytest.Entry("two"), registrytest.Entry("Demo.Web")
	plain.Metadata = map[string]string{
		"quotes": `"a" \b\ \065`, "umlaut": "grün\x00\n", "long": strings.Repeat("0123456789", 100), "empty": "",
	}
	long.ID = strings.Repeat("a.", 120) + "b"
	listed := registrytest.Put(t, c, plain, long, capital)
	for _, want := range []registry.Entry{plain, long, capital} {
		if have := registrytest.Find(listed, want.ID); have == nil || !have.Same(want) {
			t.Errorf("%s is %+v, want %+v", want.ID, have, want)
		}
	}
	registrytest.CheckNone(t, "at the end", registrytest.Remove(t, c, plain, long, capital))
}

// TestOneOfTwoWins makes two writers change the same entry from the same list.
func TestOneOfTwoWins(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	e := registrytest.Entry("one")
	registrytest.Put(t, c, e)
	for round := range 20 {
		version := registrytest.Only(t, c).Version
		results := make([]error, 2)
		var group sync.WaitGroup
		for n := range results {
			change := e
			change.Version, change.Metadata = version, map[string]string{"by": fmt.Sprint(round, n)}
			writer := b.connect(t, zone(0))
			group.Go(func() { results[n] = registrytest.TryPut(t, writer, change) })
		}
		group.Wait()
		won, lost := results[0], results[1]
		if won != nil {
			won, lost = lost, won
		}
		if byID, _ := registry.ChangeErrors(lost); won != nil || !errors.Is(byID[e.ID], registry.ErrConflict) {
			t.Fatalf("round %d: %v and %v, want one conflict", round, results[0], results[1])
		}
	}
}

// TestTampering repairs manual changes to records, and leaves foreign records alone.
func TestTampering(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	e := registrytest.Entry("one")
	z := zone(0) + "."
	srv := fmt.Sprintf("_web._tcp.%s 1 IN SRV 0 10 8080 one.web.%s", z, z)
	registrytest.Heals(t, "new", c, e)
	b.remove(t, zone(0), srv)
	registrytest.Heals(t, "without its SRV record", c, e)
	b.remove(t, zone(0), "one.web."+z+" 1 IN A 10.0.0.1")
	registrytest.Heals(t, "without its address", c, e)
	b.insert(t, zone(0), strings.Replace(srv, "SRV 0 10", "SRV 0 99", 1))
	if have := registrytest.Only(t, c); have.Unsettled == "" {
		t.Errorf("with two SRV records: %+v", have)
	}
	registrytest.Heals(t, "with two SRV records", c, e)

	other := e
	other.ID = "demo.other.00000000"
	b.insert(t, zone(0), other.ID+".web."+z+" 1 IN TXT theirs", "_web._tcp."+z+" 1 IN SRV 0 1 80 www.example.com.")
	registrytest.CheckRefused(t, "another's TXT record", registrytest.TryPut(t, c, other), other.ID, registry.ErrForeign)
	if have := registrytest.Find(registrytest.List(t, c), "www.example.com."); have == nil || have.Owner != (registry.Owner{}) {
		t.Errorf("a target outside the zone is %+v", have)
	}
}

// TestManyInstances fills the answer that callers get, and stops before it overflows.
func TestManyInstances(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	var all []registry.Entry
	for n := range 1200 {
		all = append(all, registrytest.Entry(fmt.Sprintf("production.web-%04d.00000000", n)))
	}
	refused, rest := registry.ChangeErrors(registrytest.TryPut(t, c, all...))
	listed := registrytest.List(t, c)
	if rest != nil || len(listed)+len(refused) != len(all) || len(refused) == 0 {
		t.Fatalf("%d are listed and %d were refused, %v", len(listed), len(refused), rest)
	}
	for id, err := range refused {
		registrytest.Check(t, id, err, registry.ErrPermanent, "several services")
	}
	answer, err := b.query(t.Context(), "_web._tcp."+zone(0)+".", mdns.TypeSRV)
	if err != nil || len(answer.Answer) != len(listed) {
		t.Fatalf("callers get %d records, %v; want %d", len(answer.Answer), err, len(listed))
	}
	registrytest.CheckNone(t, "at the end", registrytest.Remove(t, c, listed...))
}

// TestServersLimit reaches BIND's max-records-per-type.
func TestServersLimit(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, "small.test")
	all := []registry.Entry{registrytest.Entry("web-0"), registrytest.Entry("web-1"), registrytest.Entry("web-2"), registrytest.Entry("web-3")}
	registrytest.Put(t, c, all[:3]...)
	err := registrytest.TryPut(t, c, all...)
	if listed := registrytest.List(t, c); !strings.Contains(fmt.Sprint(err), "max-records-per-type") || len(listed) != 3 {
		t.Errorf("apply: %v; listed are %v", err, listed)
	}
}
