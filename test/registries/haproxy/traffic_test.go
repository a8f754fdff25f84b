// SPDX-License-Identifier: Apache-2.0

package haproxy_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// send sends a request through a proxy's frontend.
func (p *proxy) send(client *http.Client, query string) func(context.Context) error {
	return registrytest.Get(client, func(context.Context) (string, error) {
		return fmt.Sprintf("127.0.0.1:%d/%s", p.front, query), nil
	})
}

// client opens a new connection for each request.
func client() *http.Client { return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} }

// get sends a request that must succeed.
func (p *proxy) get(t *testing.T) {
	t.Helper()
	checktest.NoError(t, p.send(client(), "")(registrytest.Bounded(t)))
}

// slow sends n requests that take some time, and returns a function that waits until all
// have succeeded. They are in flight when slow returns.
func (p *proxy) slow(t *testing.T, n int, takes time.Duration) (wait func()) {
	t.Helper()
	ctx, ends := registrytest.Bounded(t), make(chan error, n)
	for range n {
		go func() { ends <- p.send(client(), "?slow="+takes.String())(ctx) }()
	}
	registrytest.Eventually(t, "slow requests", func() string {
		stat := p.ask(t, "show stat -1 2 -1")
		_, row, _ := strings.Cut(stat, "\nweb,BACKEND,")
		fields := strings.Split(row, ",")
		return registrytest.Unless(len(fields) >= 3 && fields[2] >= fmt.Sprint(n), "not all are in flight: "+stat)
	})
	return func() {
		t.Helper()
		for range n {
			checktest.NoError(t, <-ends) // else a request that was in flight was lost
		}
	}
}

// leave removes an instance as passes do, until it is no longer listed, and then kills
// it at once. It returns what the entry reported on the way.
func leave(t *testing.T, c registry.Connector, i *registrytest.Instance) (said []string) {
	t.Helper()
	registrytest.Eventually(t, "the end of "+i.Entry.ID, func() string {
		have := registrytest.Find(registrytest.Remove(t, c, i.Entry), i.Entry.ID)
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
	c := connect(t, p.unix())
	first := registrytest.Start(t, "first")
	registrytest.Put(t, c, first.Entry)
	fast, slow := p.callers(t, 8)
	waited, old := 0, first
	for round := range 10 {
		next := registrytest.Start(t, fmt.Sprintf("round-%d", round))
		registrytest.Put(t, c, next.Entry)
		next.AwaitMore(t, 20)
		waited += len(leave(t, c, old))
		old = next
	}
	fast.StopWithoutLoss(t)
	slow.StopWithoutLoss(t)
	if answers := fast.Answers() + slow.Answers(); answers < 400 || waited == 0 {
		t.Errorf("%d answers, %d times a drain had to wait", answers, waited)
	}
}

// callers start n callers with connections that they keep, and n with slow requests.
func (p *proxy) callers(t *testing.T, n int) (fast, slow *registrytest.Callers) {
	t.Helper()
	keeping := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	return registrytest.Call(t, n, 0, p.send(keeping, "")), registrytest.Call(t, n, 0, p.send(client(), "?slow=150ms"))
}

// TestDrainWaitsForSessions keeps an entry listed while requests are in flight, sends
// it no new ones, and lets it come back.
func TestDrainWaitsForSessions(t *testing.T) {
	p := startProxy(t)
	c := connect(t, p.tcp())
	leaver, other := registrytest.Start(t, "leaver"), registrytest.Start(t, "other")
	registrytest.Put(t, c, leaver.Entry)
	ended := p.slow(t, 2, 1500*time.Millisecond)
	registrytest.Put(t, c, other.Entry)

	have := registrytest.Find(registrytest.Remove(t, c, leaver.Entry), leaver.Entry.ID)
	want := fmt.Sprintf("it waits for 2 sessions on HAProxy 127.0.0.1:%d", p.api)
	if have == nil || have.Unsettled != want || have.Connections == nil || *have.Connections != 2 {
		t.Fatalf("the entry is %+v, want it listed: %s", have, want)
	}
	// It comes back, and is drained again.
	have = registrytest.Find(registrytest.Put(t, c, leaver.Entry), leaver.Entry.ID)
	if have == nil || have.Unsettled != "" || have.Connections != nil {
		t.Fatalf("the entry that was put back is %+v", have)
	}
	registrytest.Remove(t, c, leaver.Entry)
	for range 20 {
		p.get(t)
	}
	checktest.Same(t, "the requests of an instance that drains", 0, leaver.Served.Load())
	if said := leave(t, c, leaver); len(said) == 0 {
		t.Error("the entry went while its requests were in flight")
	}
	ended()
}

// TestHoldBack updates an instance in place, under traffic with slow requests: its
// server stays, gets no new requests, is settled when the last one is over, and comes
// back.
func TestHoldBack(t *testing.T) {
	p := startProxy(t)
	c := connect(t, p.tcp())
	held, other := registrytest.Start(t, "held"), registrytest.Start(t, "other")
	registrytest.Put(t, c, held.Entry, other.Entry)
	fast, slow := p.callers(t, 4)
	held.AwaitMore(t, 20)
	waited := 0
	for range 3 {
		waited += p.holdBack(t, c, held.Entry)
		before := held.Served.Load()
		other.AwaitMore(t, 20)
		if more := held.Served.Load() - before; more > 0 {
			t.Errorf("an instance that is held back got %d requests", more)
		}
		registrytest.Put(t, c, held.Entry)
		held.AwaitMore(t, 20)
	}
	waited += p.holdBack(t, c, held.Entry)
	held.Kill()
	other.AwaitMore(t, 20)
	fast.StopWithoutLoss(t)
	slow.StopWithoutLoss(t)
	if waited == 0 {
		t.Error("no hold had to wait for a request")
	}
}

// holdBack requests it as passes do, until it is done, and returns how often it had to
// wait for a session.
func (p *proxy) holdBack(t *testing.T, c registry.Connector, e registry.Entry) (waited int) {
	t.Helper()
	e.Weight = 0
	registrytest.Eventually(t, "the end of its requests", func() string {
		have := registrytest.Find(registrytest.Put(t, c, e), e.ID)
		if have == nil || have.Weight != 0 {
			t.Fatalf("the entry that is held back is %+v", have)
		}
		if have.Unsettled != "" {
			waited++
		}
		return have.Unsettled
	})
	if stat := p.ask(t, "show stat -1 4 -1"); !strings.Contains(stat, e.ID) {
		t.Fatalf("its server is gone: %s", stat)
	}
	return waited
}

// TestReload loses the servers, and the next comparison restores them.
func TestReload(t *testing.T) {
	p := startProxy(t)
	c := connect(t, p.unix())
	one := registrytest.Start(t, "one")
	registrytest.Put(t, c, one.Entry)
	ended := p.slow(t, 1, time.Second)
	p.reload(t)
	if err := p.send(client(), "")(registrytest.Bounded(t)); err == nil {
		t.Fatal("a reload has kept the servers: this test shows nothing")
	}
	registrytest.CheckNone(t, "after a reload", registrytest.List(t, c))
	checktest.Same(t, "unsettled after the repair", "", registrytest.Put(t, c, one.Entry)[0].Unsettled)
	p.get(t)
	ended()
}

// TestTwoProcesses: an entry is in service when both processes have it, and gone when
// neither has it.
func TestTwoProcesses(t *testing.T) {
	a, b := startProxy(t), startProxy(t)
	c := connect(t, a.tcp(), b.tcp())
	one := registrytest.Start(t, "one")
	checktest.Same(t, "unsettled", "", registrytest.Put(t, c, one.Entry)[0].Unsettled)
	b.reload(t)
	want := fmt.Sprintf("HAProxy 127.0.0.1:%d does not have it", b.api)
	checktest.Same(t, "unsettled", want, registrytest.Only(t, c).Unsettled)
	registrytest.Put(t, c, one.Entry)
	a.get(t)
	b.get(t)
	ended := b.slow(t, 1, 700*time.Millisecond)
	said := leave(t, c, one)
	if want := fmt.Sprintf("it waits for 1 session on HAProxy 127.0.0.1:%d", b.api); len(said) == 0 || said[0] != want {
		t.Errorf("while one process drains the entry says %q, want %q", said, want)
	}
	ended()
}

// conform runs the suite with one connector to several processes.
func conform(t *testing.T, addresses ...func(*proxy) string) {
	t.Helper()
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		var all []*proxy
		var where []string
		for _, address := range addresses {
			p := startProxy(t)
			all, where = append(all, p), append(where, address(p))
		}
		last := all[len(all)-1]
		return registrytest.Fixture{
			Connector: connect(t, where...),
			Seed: func(service, id string) {
				// A server on one of them is enough to interfere.
				last.ask(t, "add server "+service+"/"+id+" 192.0.2.1:1")
			},
			Break: last.Kill,
			Mend: func(ctx context.Context) error {
				// The suite expects nothing to be left on any of them.
				for _, p := range all {
					if err := p.Restart(ctx); err != nil {
						return err
					}
				}
				return nil
			},
			NoMetadata: true,
			HoldsBack:  true,
			Forgets:    true,
		}
	})
}

func TestConformanceOverTCP(t *testing.T) { conform(t, (*proxy).tcp) }

func TestConformanceOverUnixSocket(t *testing.T) { conform(t, (*proxy).unix) }

// TestConformanceOfTwo uses two processes behind one Registry.
func TestConformanceOfTwo(t *testing.T) { conform(t, (*proxy).unix, (*proxy).tcp) }
