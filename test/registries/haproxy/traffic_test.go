// SPDX-License-Identifier: Apache-2.0

package haproxy_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/haproxy"
	"github.com/usher-dev/usher/test/registries/internal/traffic"
	"github.com/usher-dev/usher/test/registries/internal/try"
)

const web = "web"

// where is the address of a proxy's frontend.
func (p *proxy) where(query string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		return fmt.Sprintf("http://127.0.0.1:%d/%s", p.front, query), nil
	}
}

// client opens a new connection for each request.
func (p *proxy) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

// slow sends n requests that take some time, and returns a channel for their results.
// They are in flight when it returns.
func (p *proxy) slow(t *testing.T, n int, takes time.Duration) <-chan error {
	t.Helper()
	ends := make(chan error, n)
	for range n {
		go func() { ends <- traffic.One(t.Context(), p.client(), p.where("?slow="+takes.String())) }()
	}
	traffic.Await(t, "slow requests", func() string {
		stat, err := p.ask("show stat web 2 -1")
		if err != nil {
			return err.Error()
		}
		fields := strings.Split(stat[strings.LastIndex(stat, "\n")+1:], ",")
		if len(fields) < 5 || fields[4] < fmt.Sprint(n) {
			return "not all are in flight: " + strings.Join(fields[:min(len(fields), 5)], ",")
		}
		return ""
	})
	return ends
}

// leave removes an instance as passes do, until it is no longer listed, and then kills
// it at once. It returns what the entry reported on the way.
func leave(t *testing.T, c registry.Connector, i *traffic.Instance) (said []string) {
	t.Helper()
	traffic.Await(t, "the end of "+i.Entry.ID, func() string {
		have := traffic.Find(traffic.Change(t, c, web, registry.Remove, i.Entry), i.Entry.ID)
		if have == nil {
			i.Kill()
			return ""
		}
		said = append(said, have.Unsettled)
		return have.Unsettled
	})
	return said
}

// TestTraffic lets instances join and leave under traffic, including slow requests.
func TestTraffic(t *testing.T) {
	p := startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{p.unix()}})
	first := traffic.Start(t, "first")
	traffic.Change(t, c, web, registry.Put, first.Entry)
	callers := traffic.Call(t, traffic.Load{Callers: 8, Client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}, Where: p.where("")})
	slow := traffic.Call(t, traffic.Load{Callers: 8, Client: p.client(), Where: p.where("?slow=150ms")})
	waited := 0
	old := first
	for round := range 10 {
		next := traffic.Start(t, fmt.Sprintf("round-%d", round))
		traffic.Change(t, c, web, registry.Put, next.Entry)
		traffic.AwaitCount(t, "requests at the new instance", 20, next.Served)
		waited += len(leave(t, c, old))
		old = next
	}
	losses := append(callers.Stop(), slow.Stop()...)
	answers := callers.Answers() + slow.Answers()
	if len(losses) > 0 || answers < 400 || waited == 0 {
		t.Errorf("%d answers, %d lost, %d times a drain had to wait: %.5s", answers, len(losses), waited, losses)
	}
	t.Logf("%d answers, %d of them slow, none lost", answers, slow.Answers())
}

// TestDrainWaitsForSessions keeps an entry listed while requests are in flight, sends
// it no new ones, and lets it come back.
func TestDrainWaitsForSessions(t *testing.T) {
	p := startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{p.tcp()}})
	leaver, other := traffic.Start(t, "leaver"), traffic.Start(t, "other")
	traffic.Change(t, c, web, registry.Put, leaver.Entry)
	ends := p.slow(t, 2, 1500*time.Millisecond)
	traffic.Change(t, c, web, registry.Put, other.Entry)

	have := traffic.Find(traffic.Change(t, c, web, registry.Remove, leaver.Entry), leaver.Entry.ID)
	want := fmt.Sprintf("it waits for 2 sessions on HAProxy 127.0.0.1:%d", p.api)
	if have == nil || have.Unsettled != want {
		t.Fatalf("the entry is %+v, want it listed: %s", have, want)
	}
	// It comes back, and is drained again.
	have = traffic.Find(traffic.Change(t, c, web, registry.Put, leaver.Entry), leaver.Entry.ID)
	if have == nil || have.Unsettled != "" {
		t.Fatalf("the entry that was put back is %+v", have)
	}
	traffic.Change(t, c, web, registry.Remove, leaver.Entry)
	for range 20 {
		if err := traffic.One(t.Context(), p.client(), p.where("")); err != nil {
			t.Fatal(err)
		}
	}
	if leaver.Served() != 0 {
		t.Errorf("an instance that drains was given %d requests", leaver.Served())
	}
	said := leave(t, c, leaver)
	if len(said) == 0 {
		t.Error("the entry went while its requests were in flight")
	}
	for range 2 {
		if err := <-ends; err != nil {
			t.Errorf("a request that was in flight was lost: %v", err)
		}
	}
	t.Logf("%d requests finished; on the way it said: %s", leaver.Served(), said[len(said)-1])
}

// TestHoldBack updates an instance in place, under traffic with slow requests: its
// server stays, gets no new requests, is settled when the last one is over, and comes
// back.
func TestHoldBack(t *testing.T) {
	p := startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{p.tcp()}})
	held, other := traffic.Start(t, "held"), traffic.Start(t, "other")
	traffic.Change(t, c, web, registry.Put, held.Entry, other.Entry)
	fast := traffic.Call(t, traffic.Load{Callers: 4, Client: p.client(), Where: p.where("")})
	slow := traffic.Call(t, traffic.Load{Callers: 4, Client: p.client(), Where: p.where("?slow=150ms")})
	traffic.AwaitCount(t, "requests at the one that is to be held", 20, held.Served)
	waited := 0
	for range 3 {
		waited += p.holdBack(t, c, held.Entry)
		before := held.Served()
		traffic.AwaitCount(t, "requests at the other one", other.Served()+20, other.Served)
		if more := held.Served() - before; more > 0 {
			t.Errorf("an instance that is held back was given %d requests", more)
		}
		traffic.Change(t, c, web, registry.Put, held.Entry)
		traffic.AwaitCount(t, "requests at the one that is back", before+20, held.Served)
	}
	waited += p.holdBack(t, c, held.Entry)
	held.Kill()
	traffic.AwaitCount(t, "requests without it", other.Served()+20, other.Served)
	losses := append(fast.Stop(), slow.Stop()...)
	if len(losses) > 0 || waited == 0 {
		t.Errorf("%d lost, %d times a hold had to wait: %.5s", len(losses), waited, losses)
	}
	t.Logf("%d answers, none lost; holds had to wait %d times", fast.Answers()+slow.Answers(), waited)
}

// holdBack requests it as passes do, until it is done, and returns how often it had to
// wait for a session.
func (p *proxy) holdBack(t *testing.T, c registry.Connector, e registry.Entry) (waited int) {
	t.Helper()
	e.Weight = 0
	traffic.Await(t, "the end of its requests", func() string {
		have := traffic.Find(traffic.Change(t, c, web, registry.Put, e), e.ID)
		if have == nil || have.Weight != 0 {
			t.Fatalf("the entry that is held back is %+v", have)
		}
		if have.Unsettled != "" {
			waited++
		}
		return have.Unsettled
	})
	stat, err := p.ask("show stat web 4 -1")
	if err != nil || !strings.Contains(stat, e.ID) {
		t.Fatalf("its server is gone: %s, %v", stat, err)
	}
	return waited
}

// TestReload loses the servers, and the next comparison restores them.
func TestReload(t *testing.T) {
	p := startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{p.unix()}})
	one := traffic.Start(t, "one")
	traffic.Change(t, c, web, registry.Put, one.Entry)
	ends := p.slow(t, 1, time.Second)
	p.reload(t)
	if err := traffic.One(t.Context(), p.client(), p.where("")); err == nil {
		t.Fatal("a reload has kept the servers: this test shows nothing")
	}
	listed, err := c.List(try.Bounded(t), web)
	if err != nil || len(listed) != 0 {
		t.Fatalf("after a reload %v is listed, %v", listed, err)
	}
	listed = traffic.Change(t, c, web, registry.Put, one.Entry)
	if have := traffic.Find(listed, one.Entry.ID); have == nil || have.Unsettled != "" {
		t.Errorf("after the repair the entry is %+v", have)
	}
	if err := traffic.One(t.Context(), p.client(), p.where("")); err != nil {
		t.Errorf("after the repair a request failed: %v", err)
	}
	if err := <-ends; err != nil {
		t.Errorf("the request that the old process had in flight was lost: %v", err)
	}
}

// TestTwoProcesses: an entry is in service when both processes have it, and gone when
// neither has it.
func TestTwoProcesses(t *testing.T) {
	a, b := startProxy(t), startProxy(t)
	c := connect(t, haproxy.Options{Addresses: []string{a.tcp(), b.tcp()}})
	one := traffic.Start(t, "one")
	listed := traffic.Change(t, c, web, registry.Put, one.Entry)
	if have := traffic.Find(listed, one.Entry.ID); have == nil || have.Unsettled != "" {
		t.Fatalf("the entry is %+v", have)
	}
	b.reload(t)
	listed, err := c.List(try.Bounded(t), web)
	want := fmt.Sprintf("HAProxy 127.0.0.1:%d does not have it", b.api)
	if have := traffic.Find(listed, one.Entry.ID); err != nil || have == nil || have.Unsettled != want {
		t.Fatalf("the entry is %+v, want it unsettled: %s", have, want)
	}
	traffic.Change(t, c, web, registry.Put, one.Entry)
	for _, p := range []*proxy{a, b} {
		if err := traffic.One(t.Context(), p.client(), p.where("")); err != nil {
			t.Errorf("a request through port %d failed: %v", p.front, err)
		}
	}
	ends := b.slow(t, 1, 700*time.Millisecond)
	said := leave(t, c, one)
	if want := fmt.Sprintf("it waits for 1 session on HAProxy 127.0.0.1:%d", b.api); len(said) == 0 || said[0] != want {
		t.Errorf("while one process drains the entry says %q, want %q", said, want)
	}
	if err := <-ends; err != nil {
		t.Errorf("the request in flight was lost: %v", err)
	}
}
