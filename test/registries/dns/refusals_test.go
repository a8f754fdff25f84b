// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/dns"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

func TestCredentials(t *testing.T) {
	b := startBind(t, 1)
	wrong, longer := credentials("usher"), credentials("usher512")
	wrong[dns.KeySecret] = []byte("d3Jvbmctd3Jvbmctd3Jvbmctd3Jvbmctd3Jvbmctd3I=")
	longer[dns.KeyAlgorithm] = []byte("hmac-sha512")
	late := func() time.Time { return time.Now().Add(-10 * time.Minute) }
	for _, test := range []struct {
		name    string
		options dns.Options
		words   string
	}{
		{"right", dns.Options{Secret: credentials("usher")}, ""},
		{"another algorithm", dns.Options{Secret: longer}, ""},
		{"wrong secret", dns.Options{Secret: wrong}, "BADSIG"},
		{"unknown key", dns.Options{Secret: credentials("nobody")}, "BADKEY"},
		{"wrong algorithm", dns.Options{Secret: credentials("usher512")}, "refuses the TSIG key"},
		{"wrong clock", dns.Options{Secret: credentials("usher"), Now: late}, "clocks"},
		{"another zone", dns.Options{Secret: credentials("usher"), Zone: "other.test"}, "other.test"},
	} {
		options := test.options
		options.Server, options.Zone = b.address(), cmp.Or(options.Zone, zone(0))
		c := registrytest.Connect(t, dns.New, options)
		var mark error
		if test.words != "" {
			mark = registry.ErrPermanent
		}
		err := c.Ping(registrytest.Bounded(t))
		registrytest.Check(t, test.name, err, mark, test.words)
		if strings.Contains(fmt.Sprint(err), string(options.Secret[dns.KeySecret])) {
			t.Errorf("%s: the error reveals the secret: %v", test.name, err)
		}
	}
}

// TestMayNotWrite uses keys that the policy does not let write, or none.
func TestMayNotWrite(t *testing.T) {
	b := startBind(t, 1)
	for name, secret := range map[string]map[string][]byte{"reader": credentials("reader"), "no key": nil} {
		c := registrytest.Connect(t, dns.New, dns.Options{Server: b.address(), Zone: zone(0), Secret: secret})
		if listed := registrytest.List(t, c); len(listed) != 0 {
			t.Errorf("%s: listed: %v", name, listed)
		}
		registrytest.Check(t, name, registrytest.TryPut(t, c, registrytest.Entry("one")), registry.ErrPermanent, "update-policy")
	}
}

func TestServiceIsOneLabel(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	for _, service := range []string{"web.demo", "Web", "-web", strings.Repeat("w", 63), "web\n"} {
		_, err := c.List(registrytest.Bounded(t), service)
		registrytest.Check(t, "the service "+service, err, registry.ErrPermanent)
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
	if left := registrytest.Remove(t, c, plain, long, capital); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
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
	healed := func(what string) {
		t.Helper()
		listed := registrytest.Put(t, c, e)
		if have := registrytest.Find(listed, e.ID); have == nil || !have.Same(e) {
			t.Errorf("%s: the entry is %+v, want %+v", what, have, e)
		}
	}
	healed("new")
	b.remove(t, zone(0), srv)
	healed("without its SRV record")
	b.remove(t, zone(0), "one.web."+z+" 1 IN A 10.0.0.1")
	healed("without its address")
	b.insert(t, zone(0), strings.Replace(srv, "SRV 0 10", "SRV 0 99", 1))
	if have := registrytest.Only(t, c); have.Unsettled == "" {
		t.Errorf("with two SRV records: %+v", have)
	}
	healed("with two SRV records")

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
	if left := registrytest.Remove(t, c, listed...); len(left) != 0 {
		t.Errorf("%d are left", len(left))
	}
}

// TestServersLimit reaches BIND's max-records-per-type.
func TestServersLimit(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, "small.test")
	var all []registry.Entry
	for n := range 4 {
		all = append(all, registrytest.Entry(fmt.Sprint("web-", n)))
	}
	registrytest.Put(t, c, all[:3]...)
	err := registrytest.TryPut(t, c, all...)
	if listed := registrytest.List(t, c); !strings.Contains(fmt.Sprint(err), "max-records-per-type") || len(listed) != 3 {
		t.Errorf("apply: %v; listed are %v", err, listed)
	}
}
