// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// caller resolves a service like a good client: it caches answers for the TTL, and no
// longer.
type caller struct {
	bind *bind
	name string

	mu      sync.Mutex
	targets []string
	until   time.Time
}

func (c *caller) where(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().After(c.until) {
		if err := c.resolve(ctx); err != nil {
			return "", err
		}
	}
	if len(c.targets) == 0 {
		return "", fmt.Errorf("%s has no instances", c.name)
	}
	return c.targets[rand.IntN(len(c.targets))], nil
}

// resolve queries the SRV records and the addresses of their targets.
func (c *caller) resolve(ctx context.Context) error {
	asked := time.Now()
	answer, err := c.bind.query(ctx, c.name, mdns.TypeSRV)
	if err != nil {
		return err
	}
	c.targets = nil
	for _, rr := range answer.Answer {
		srv, ok := rr.(*mdns.SRV)
		if !ok {
			continue
		}
		addresses, err := c.bind.query(ctx, srv.Target, mdns.TypeA)
		if err != nil {
			return err
		}
		for _, rr := range addresses.Answer {
			if a, ok := rr.(*mdns.A); ok {
				c.targets = append(c.targets, fmt.Sprintf("%s:%d", a.A, srv.Port))
			}
		}
		c.until = asked.Add(time.Duration(srv.Hdr.Ttl) * time.Second)
	}
	return nil
}

func newCaller(b *bind, zone string) *caller {
	return &caller{bind: b, name: "_" + web + "._tcp." + zone + "."}
}

// TestTraffic lets instances join and leave under callers that resolve again when the
// TTL is over.
func TestTraffic(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	old := registrytest.Start(t, "first")
	registrytest.Put(t, c, old.Entry)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	callers := registrytest.Call(t, 8, 0, registrytest.Get(client, newCaller(b, zone(0)).where))
	for round := range 4 {
		next := registrytest.Start(t, fmt.Sprintf("round-%d", round))
		registrytest.Put(t, c, next.Entry)
		next.AwaitMore(t, 20)
		if left := registrytest.Remove(t, c, old.Entry); registrytest.Find(left, old.Entry.ID) != nil {
			t.Fatalf("%s is still listed", old.Entry.ID)
		}
		// The propagation: the TTL, and a little for a resolution in progress.
		<-time.After(ttl*time.Second + 300*time.Millisecond)
		old.Kill()
		old = next
	}
	callers.Stop()
	callers.CheckNoneLost(t)
	if callers.Answers() < 400 {
		t.Errorf("only %d requests were answered", callers.Answers())
	}
}

// TestTrafficWithoutTheWait shows that the previous test can fail.
func TestTrafficWithoutTheWait(t *testing.T) {
	b := startBind(t, 1)
	c := b.connect(t, zone(0))
	one, two := registrytest.Start(t, "one"), registrytest.Start(t, "two")
	registrytest.Put(t, c, one.Entry, two.Entry)
	caller := newCaller(b, zone(0))
	if _, err := caller.where(t.Context()); err != nil {
		t.Fatal(err)
	}
	registrytest.Remove(t, c, one.Entry)
	one.Kill()
	registrytest.Call(t, 8, 0, registrytest.Get(http.DefaultClient, caller.where)).AwaitLoss(t)
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
