// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
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
