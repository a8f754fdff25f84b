// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/dns"
	"github.com/usher-dev/usher/test/registries/internal/traffic"
	"github.com/usher-dev/usher/test/registries/internal/try"
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
		options.Server = b.address()
		if options.Zone == "" {
			options.Zone = zone(0)
		}
		c, err := dns.New(options)
		if err != nil {
			t.Fatal(err)
		}
		err = c.Ping(try.Bounded(t))
		switch {
		case test.words == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.words != "" && (!errors.Is(err, registry.ErrPermanent) || !contains(err, test.words)):
			t.Errorf("%s: %v, want a permanent error with %q", test.name, err, test.words)
		case contains(err, string(options.Secret[dns.KeySecret])):
			t.Errorf("%s: the error tells the secret: %v", test.name, err)
		}
	}
}

// TestMayNotWrite uses keys that the policy does not let write, or none.
func TestMayNotWrite(t *testing.T) {
	b := startBind(t, 1)
	for name, secret := range map[string]map[string][]byte{"reader": credentials("reader"), "no key": nil} {
		c, err := dns.New(dns.Options{Server: b.address(), Zone: zone(0), Secret: secret})
		if err != nil {
			t.Fatal(err)
		}
		if listed, err := c.List(try.Bounded(t), web); err != nil || len(listed) != 0 {
			t.Errorf("%s: list: %v, %v", name, listed, err)
		}
		err = c.Apply(try.Bounded(t), web, []registry.Change{{Op: registry.Put, Entry: traffic.Start(t, "one").Entry}})
		if !errors.Is(err, registry.ErrPermanent) || !contains(err, "update-policy") {
			t.Errorf("%s: apply: %v, want a permanent error that names the policy", name, err)
		}
	}
}

func TestServiceIsOneLabel(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	for _, service := range []string{"web.demo", "Web", "-web", strings.Repeat("w", 63), "web\n"} {
		if _, err := c.List(try.Bounded(t), service); !errors.Is(err, registry.ErrPermanent) {
			t.Errorf("service %q: %v, want a permanent error", service, err)
		}
	}
}

// TestAnyText uses IDs that are not valid names, and metadata that DNS would escape.
func TestAnyText(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	plain, long, capital := traffic.Start(t, "one").Entry, traffic.Start(t, "two").Entry, traffic.Start(t, "three").Entry
	plain.Metadata = map[string]string{
		"quotes": `"a" \b\ \065`, "umlaut": "grün\x00\n", "long": strings.Repeat("0123456789", 100), "empty": "",
	}
	long.ID = strings.Repeat("a.", 120) + "b"
	capital.ID = "Demo.Web"
	listed := traffic.Change(t, c, web, registry.Put, plain, long, capital)
	for _, want := range []registry.Entry{plain, long, capital} {
		if have := traffic.Find(listed, want.ID); have == nil || !have.Same(want) {
			t.Errorf("%s is %+v, want %+v", want.ID, have, want)
		}
	}
	if left := traffic.Change(t, c, web, registry.Remove, plain, long, capital); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// TestOneOfTwoWins makes two writers change the same entry from the same list.
func TestOneOfTwoWins(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	e := traffic.Start(t, "one").Entry
	traffic.Change(t, c, web, registry.Put, e)
	for round := range 20 {
		listed, err := c.List(try.Bounded(t), web)
		if err != nil || len(listed) != 1 {
			t.Fatal(listed, err)
		}
		results := make([]error, 2)
		var group sync.WaitGroup
		for n := range results {
			change := e
			change.Version, change.Metadata = listed[0].Version, map[string]string{"by": fmt.Sprint(round, n)}
			ctx := try.Bounded(t)
			group.Go(func() {
				results[n] = b.connect(t, zone(0)).Apply(ctx, web, []registry.Change{{Op: registry.Put, Entry: change}})
			})
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
	e := traffic.Start(t, "one").Entry
	z := zone(0) + "."
	srv := fmt.Sprintf("_web._tcp.%s 1 IN SRV 0 10 %d %s.web.%s", z, e.Port, e.ID, z)
	healed := func(what string) {
		t.Helper()
		listed := traffic.Change(t, c, web, registry.Put, e)
		if have := traffic.Find(listed, e.ID); have == nil || !have.Same(e) {
			t.Errorf("%s: the entry is %+v, want %+v", what, have, e)
		}
	}
	healed("new")
	b.remove(t, srv)
	healed("without its SRV record")
	b.remove(t, fmt.Sprintf("%s.web.%s 1 IN A 127.0.0.1", e.ID, z))
	healed("without its address")
	b.insert(t, zone(0), strings.Replace(srv, "SRV 0 10", "SRV 0 99", 1))
	listed, err := c.List(try.Bounded(t), web)
	if err != nil || len(listed) != 1 || listed[0].Unsettled == "" {
		t.Errorf("with two SRV records: %+v, %v", listed, err)
	}
	healed("with two SRV records")

	other := e
	other.ID = "demo.other.00000000"
	b.insert(t, zone(0), other.ID+".web."+z+" 1 IN TXT theirs", "_web._tcp."+z+" 1 IN SRV 0 1 80 www.example.com.")
	err = c.Apply(try.Bounded(t), web, []registry.Change{{Op: registry.Put, Entry: other}})
	if byID, _ := registry.ChangeErrors(err); !errors.Is(byID[other.ID], registry.ErrForeign) {
		t.Errorf("over somebody else's TXT record: %v", err)
	}
	listed, err = c.List(try.Bounded(t), web)
	if have := traffic.Find(listed, "www.example.com."); err != nil || have == nil || have.Owner != (registry.Owner{}) {
		t.Errorf("a target elsewhere is %+v, %v", have, err)
	}
}

// remove deletes records as a client other than Usher.
func (b *bind) remove(t *testing.T, records ...string) {
	t.Helper()
	request := new(mdns.Msg)
	request.SetUpdate(zone(0) + ".")
	for _, text := range records {
		rr, err := mdns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		request.Remove([]mdns.RR{rr})
	}
	b.update(t, request)
}

// TestManyInstances fills the answer that callers get, and stops before it overflows.
func TestManyInstances(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	var changes []registry.Change
	for n := range 1200 {
		e := registry.Entry{
			ID: fmt.Sprintf("production.web-%04d.00000000", n), Address: "10.0.0.1", Port: 80, Weight: 1,
			Owner: registry.Owner{Cluster: "here", Namespace: "production", Registration: "web", PodUID: fmt.Sprintf("00000000-%d", n)},
		}
		changes = append(changes, registry.Change{Op: registry.Put, Entry: e})
	}
	began := time.Now()
	byID, rest := registry.ChangeErrors(c.Apply(try.Bounded(t), web, changes))
	in := time.Since(began)
	if rest != nil {
		t.Fatal(rest)
	}
	listed, err := c.List(try.Bounded(t), web)
	if err != nil || len(listed)+len(byID) != len(changes) || len(byID) == 0 {
		t.Fatalf("%d are listed and %d were refused, %v", len(listed), len(byID), err)
	}
	tooMany(t, byID)
	answer, err := b.query(t.Context(), "_web._tcp."+zone(0)+".", mdns.TypeSRV)
	if err != nil || len(answer.Answer) != len(listed) {
		t.Fatalf("callers get %d records, %v; want %d", len(answer.Answer), err, len(listed))
	}
	t.Logf("%d instances after %s, listed after another %s", len(listed), in, time.Since(began)-in)
	if left := traffic.Change(t, c, web, registry.Remove, listed...); len(left) != 0 {
		t.Errorf("%d are left", len(left))
	}
}

// tooMany checks the errors for the entries that did not fit.
func tooMany(t *testing.T, refused map[string]error) {
	t.Helper()
	for id, err := range refused {
		if !errors.Is(err, registry.ErrPermanent) || !contains(err, "several services") {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// TestServersLimit reaches BIND's max-records-per-type.
func TestServersLimit(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, "small.test")
	var changes []registry.Change
	for n := range 4 {
		changes = append(changes, registry.Change{Op: registry.Put, Entry: traffic.Start(t, fmt.Sprint("web-", n)).Entry})
	}
	if err := c.Apply(try.Bounded(t), web, changes[:3]); err != nil {
		t.Fatal(err)
	}
	err := c.Apply(try.Bounded(t), web, changes)
	if listed, listErr := c.List(try.Bounded(t), web); !contains(err, "max-records-per-type") || listErr != nil || len(listed) != 3 {
		t.Errorf("apply: %v; listed are %v, %v", err, listed, listErr)
	}
}
