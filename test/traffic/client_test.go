// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

const bound = 20 * time.Second

// registry is a Source controlled by a test.
type registry struct {
	steps chan func(Sink) error
}

func newRegistry() *registry { return &registry{steps: make(chan func(Sink) error)} }

func (r *registry) Follow(ctx context.Context, sink Sink) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case step := <-r.steps:
			if err := step(sink); err != nil {
				return err
			}
		}
	}
}

func (r *registry) list(addrs ...string) {
	entries := []Entry{}
	for _, addr := range addrs {
		entries = append(entries, Entry{Key: addr, Addr: addr})
	}
	r.steps <- func(s Sink) error { s.Replace(entries); return nil }
}

func (r *registry) fail() {
	r.steps <- func(Sink) error { return errors.New("etcd is away") }
}

// running is a client in mid-stream.
type running struct {
	*Client
	*registry
	stop context.CancelFunc
	done chan error
}

// start begins a stream without lag and slow requests, unless change sets them.
func start(t *testing.T, change ...func(*Options)) *running {
	t.Helper()
	source := newRegistry()
	options := Options{Source: source, Rate: 1000, CacheDelay: -1, slowShare: -1, Timeout: 5 * time.Second}
	for _, do := range change {
		do(&options)
	}
	client, err := New(options)
	registrytest.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	r := &running{Client: client, registry: source, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- client.Run(ctx) }()
	t.Cleanup(stop)
	return r
}

func (r *running) finish(t *testing.T) Section {
	t.Helper()
	r.stop()
	return r.await(t)
}

func (r *running) await(t *testing.T) Section {
	t.Helper()
	select {
	case err := <-r.done:
		if err != nil {
			t.Fatalf("Run: %v", err)
		}
	case <-time.After(bound):
		t.Fatalf("the stream did not end within %s", bound)
	}
	return r.Report().Total()
}

func (r *running) sent() int { return r.Stats(time.Now()).Sent }
func (r *running) lost() int { return r.Stats(time.Now()).Lost }

func (r *running) sendMore(t *testing.T, n int) {
	t.Helper()
	target := r.sent() + n
	registrytest.Until(t, "more requests", func() bool { return r.sent() >= target })
}

// serve starts a server and returns its address.
func serve(t *testing.T, handler http.HandlerFunc) (addr string) {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// healthy answers everything, slow requests after the requested time.
func healthy(t *testing.T, version string) (addr string) {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		if d, err := time.ParseDuration(r.URL.Query().Get("d")); err == nil {
			select {
			case <-time.After(d):
			case <-r.Context().Done():
			}
		}
		_, _ = fmt.Fprintf(w, `{"version":%q}`, version)
	})
}

// stalled answers nothing before release.
func stalled(t *testing.T) (addr string, release func()) {
	t.Helper()
	released := make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	addr = serve(t, func(http.ResponseWriter, *http.Request) { <-released })
	t.Cleanup(release)
	return addr, release
}

// cut closes the connection without an answer.
func cut(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // otherwise the connection is reset, not closed
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

func expectNoneLost(t *testing.T, total Section) {
	t.Helper()
	if total.Lost != 0 {
		t.Errorf("lost %d of %d", total.Lost, total.Sent)
	}
}

func TestAHealthyServiceLosesNothing(t *testing.T) {
	one, two := healthy(t, "v1"), healthy(t, "v2")
	r := start(t)
	r.Section("steady")
	r.list(one, two)
	r.sendMore(t, 400)
	stats := r.Stats(time.Now())
	total := r.finish(t)
	if total.Lost != 0 || total.Sent < 400 || len(total.Fast) != total.Sent {
		t.Errorf("sent %d, answered %d, lost %d", total.Sent, len(total.Fast), total.Lost)
	}
	for _, i := range stats.Instances {
		if !i.Registered || i.Sent < stats.Sent*45/100 || i.Sent > stats.Sent*55/100 {
			t.Errorf("%s (registered %v) got %d of %d requests, want half", i.Addr, i.Registered, i.Sent, stats.Sent)
		}
	}
	if versions := r.Stats(time.Now()).Versions; versions["v1"]+versions["v2"] != total.Sent {
		t.Errorf("answers by version %v, want %d in sum", versions, total.Sent)
	}
}

// Before the service was ever seen, nothing can be lost.
func TestTheStreamBeginsWithTheFirstInstance(t *testing.T) {
	s := healthy(t, "v1")
	r := start(t)
	r.list()
	r.fail()
	registrytest.Until(t, "the trouble to be reported", func() bool { return r.Trouble() != nil })
	if stats := r.Stats(time.Now()); stats.Sent != 0 || !stats.Started.IsZero() {
		t.Errorf("without an instance: sent %d, started %s", stats.Sent, stats.Started)
	}
	r.list(s)
	r.sendMore(t, 50)
	if r.Trouble() != nil {
		t.Errorf("the registry is back, but the trouble stayed: %v", r.Trouble())
	}
	expectNoneLost(t, r.finish(t))
}

// Nothing is retried: not on another instance, and not on another connection when a
// kept-alive one turns out to be dead.
func TestALostRequestIsLost(t *testing.T) {
	var asked atomic.Int64
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1)%2 == 0 { // the second request on a kept-alive connection
			cut(w, r)
		}
	})
	r := start(t, func(o *Options) { o.Rate = 200 })
	r.list(addr)
	r.sendMore(t, 100)
	total := r.finish(t)
	if int64(total.Sent) != asked.Load() {
		t.Errorf("%d requests were sent, but the server received %d", total.Sent, asked.Load())
	}
	if half := total.Sent / 2; total.Lost != half {
		t.Errorf("lost %d of %d, want %d", total.Lost, total.Sent, half)
	}
}

// A connection for each request ends in good order: there is no body that a server leaves
// unread.
func TestNewConnections(t *testing.T) {
	var connections, bodies atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { bodies.Add(r.ContentLength) }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	r := start(t, func(o *Options) { o.NewConnections = true })
	r.list(s.Listener.Addr().String())
	r.sendMore(t, 50)
	total := r.finish(t)
	expectNoneLost(t, total)
	if n := int(connections.Load()); n != total.Sent || bodies.Load() != 0 {
		t.Errorf("%d requests had %d connections and %d bytes of body", total.Sent, n, bodies.Load())
	}
}

func TestReasonsOfLosses(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	busy := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	hung := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is the end of the connection noticed
		<-r.Context().Done()
	})
	for _, c := range []struct{ name, addr, want string }{
		{"refused", gone.Listener.Addr().String(), "connection refused"},
		{"503", busy, "answered with 503 Service Unavailable"},
		{"cut", serve(t, cut), "connection closed before the answer"},
		{"hung", hung, "no answer within 300ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var told atomic.Int64
			r := start(t, func(o *Options) {
				o.Rate, o.Timeout, o.SlowMin, o.SlowMax = 100, 300*time.Millisecond, time.Millisecond, time.Millisecond
				o.KeepLosses, o.OnLost = 2, func(Loss) { told.Add(1) }
			})
			r.Section("only")
			r.list(c.addr)
			registrytest.Until(t, "a few losses", func() bool { return r.lost() >= 3 })
			total := r.finish(t)
			report := r.Report()
			if total.Lost != total.Sent || len(report.Reasons) != 1 || report.Reasons[0] != (ReasonCount{c.want, total.Lost}) {
				t.Errorf("lost %d of %d for %v, want all for %q", total.Lost, total.Sent, report.Reasons, c.want)
			}
			if len(report.Losses) != 2 || report.Losses[0].Addr != c.addr || report.Losses[0].Section != "only" || int(told.Load()) != total.Lost {
				t.Errorf("kept losses %+v, want the first two, at %s; told of %d of %d", report.Losses, c.addr, told.Load(), total.Lost)
			}
		})
	}
}

// Slow answers do not slow the stream: that would hide a stalled server.
func TestTheStreamIsAnOpenLoop(t *testing.T) {
	addr, release := stalled(t)
	r := start(t)
	r.list(addr)
	registrytest.Until(t, "100 requests under way although none was answered", func() bool {
		return r.Stats(time.Now()).InFlight >= 100
	})
	release()
	total := r.finish(t)
	expectNoneLost(t, total)
	if worst := total.Fast.Percentile(100); worst < 50*time.Millisecond {
		t.Errorf("the worst latency is %s, but the server stalled for the time that 100 requests take to arrive", worst)
	}
}

// A registry that cannot be reached leaves callers with the last list.
func TestAnOutageKeepsTheLastList(t *testing.T) {
	s := healthy(t, "v1")
	r := start(t)
	r.list(s)
	r.fail()
	registrytest.Until(t, "the outage to be reported", func() bool { return r.Trouble() != nil })
	r.sendMore(t, 200)
	expectNoneLost(t, r.finish(t))
}

// An empty list is a service that is down, unless its end was announced.
func TestWithoutAnInstanceRequestsAreLost(t *testing.T) {
	s := healthy(t, "v1")
	r := start(t)
	r.list(s)
	r.sendMore(t, 50)
	r.list()
	registrytest.Until(t, "losses", func() bool { return r.lost() > 10 })
	if got := r.Report().Reasons; len(got) != 1 || got[0].Reason != reasonNoInstance {
		t.Errorf("reasons %v, want %q", got, reasonNoInstance)
	}
}

func TestTheStreamEndsByItselfWithTheService(t *testing.T) {
	s := healthy(t, "v1")
	r := start(t, func(o *Options) { o.CacheDelay = 200 * time.Millisecond })
	r.list(s)
	r.sendMore(t, 50)
	r.EndWhenGone()
	r.sendMore(t, 50) // announced, but not gone yet
	r.list()
	total := r.await(t)
	if total.Lost != 0 || total.Drained == 0 {
		t.Errorf("lost %d, answered after the end of the registration %d; want none lost, some answered", total.Lost, total.Drained)
	}
}

// Requests that were in flight when an instance left the registry, and those that
// callers with a cache still sent to it, are answered.
func TestDrainedRequestsAreCounted(t *testing.T) {
	leaving := healthy(t, "v1")
	staying := healthy(t, "v1")
	left := make(chan string, 1)
	r := start(t, func(o *Options) {
		o.slowShare, o.SlowMin, o.SlowMax = 0.5, 100*time.Millisecond, 200*time.Millisecond
		o.CacheDelay = 100 * time.Millisecond
		o.OnChange = func(c Change) {
			if !c.Joined {
				left <- c.Addr
			}
		}
	})
	r.list(leaving, staying)
	r.sendMore(t, 300)
	r.list(staying)
	r.sendMore(t, 300)
	total := r.finish(t)
	expectNoneLost(t, total)
	if total.DrainedSlow == 0 || total.DrainedSlow >= total.Drained {
		t.Errorf("answered after the instance had left: %d, %d of them slow; want some of each kind", total.Drained, total.DrainedSlow)
	}
	if got := <-left; got != leaving {
		t.Errorf("%q left, want %q", got, leaving)
	}
	if p50 := total.Slow.Percentile(50); p50 < 100*time.Millisecond {
		t.Errorf("slow requests took %s, want at least 100ms", p50)
	}
}

// Requests that a departed instance has yet to answer can still be lost.
func TestRequestsInFlightAreNotSettled(t *testing.T) {
	addr, release := stalled(t)
	r := start(t)
	r.list(addr)
	r.sendMore(t, 10)
	if !r.Settled(time.Now()) {
		t.Error("nothing has left, and yet it is not settled")
	}
	r.EndWhenGone()
	r.list()
	registrytest.Until(t, "the end of the registration", func() bool {
		return !r.Stats(time.Now()).Instances[0].Registered
	})
	if r.Settled(time.Now()) {
		t.Error("settled, although requests are left at the instance that is gone")
	}
	release()
	registrytest.Until(t, "the answers", func() bool { return r.Settled(time.Now()) })
	expectNoneLost(t, r.await(t))
}
