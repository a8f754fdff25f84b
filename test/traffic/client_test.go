// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

const bound = 20 * time.Second

// listing is a Source that a test controls.
type listing chan func(report func([]string)) error

func (l listing) Follow(ctx context.Context, report func([]string)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case step := <-l:
			if err := step(report); err != nil {
				return err
			}
		}
	}
}

// running is a client in mid-stream.
type running struct {
	*testing.T
	*Client
	listing listing
	stop    context.CancelFunc
	done    chan error
}

// start begins a stream, by default without lag and slow requests.
func start(t *testing.T, change ...func(*Options)) *running {
	t.Helper()
	source := make(listing)
	options := Options{Source: source, Rate: 1000, Timeout: 5 * time.Second}
	for _, do := range change {
		do(&options)
	}
	client := New(options)
	ctx, stop := context.WithCancel(context.Background())
	r := &running{T: t, Client: client, listing: source, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- client.Run(ctx) }()
	t.Cleanup(stop)
	return r
}

func (r *running) list(addresses ...string) {
	r.listing <- func(report func([]string)) error { report(addresses); return nil }
}

// fail makes the registry unreachable.
func (r *running) fail() {
	r.Helper()
	r.listing <- func(func([]string)) error { return errors.New("etcd is away") }
	registrytest.Until(r.T, "the trouble to be reported", func() bool { return r.Trouble() != nil })
}

func (r *running) finish() Section {
	r.Helper()
	r.stop()
	return r.await()
}

func (r *running) await() Section {
	r.Helper()
	select {
	case err := <-r.done:
		checktest.NoError(r.T, err)
	case <-time.After(bound):
		r.Fatalf("the stream did not end within %s", bound)
	}
	return r.total()
}

func (r *running) total() Section { return r.Report().Total() }

func (r *running) sendMore(n int) {
	r.Helper()
	target := r.total().Sent + n
	registrytest.Until(r.T, "more requests", func() bool { return r.total().Sent >= target })
}

func (r *running) expectNoneLost(total Section) {
	r.Helper()
	if total.Lost != 0 || total.Sent == 0 || len(total.Fast)+len(total.Slow) != total.Sent {
		r.Errorf("of %d %d were lost and %d answered", total.Sent, total.Lost, len(total.Fast)+len(total.Slow))
	}
}

// server counts the requests that it has received.
type server struct {
	addr  string
	asked atomic.Int64
}

// serve starts a server.
func serve(t *testing.T, handle http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		handle(w, r)
	}))
	t.Cleanup(h.Close)
	s.addr = h.Listener.Addr().String()
	return s
}

// healthy answers everything, slow requests after the requested time.
func healthy(t *testing.T) *server {
	t.Helper()
	return serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if d, err := time.ParseDuration(r.URL.Query().Get("d")); err == nil {
			select {
			case <-time.After(d):
			case <-r.Context().Done():
			}
		}
	})
}

// stalled answers nothing before release.
func stalled(t *testing.T) (s *server, release func()) {
	t.Helper()
	released := make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	s = serve(t, func(http.ResponseWriter, *http.Request) { <-released })
	t.Cleanup(release)
	return s, release
}

// cut closes the connection without an answer.
func cut(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // otherwise the connection is reset, not closed
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

func TestAHealthyServiceLosesNothing(t *testing.T) {
	one, two := healthy(t), healthy(t)
	r := start(t)
	r.Section("steady")
	r.list(one.addr, two.addr)
	r.sendMore(400)
	total := r.finish()
	r.expectNoneLost(total)
	if share := 100 * int(one.asked.Load()) / total.Sent; share < 45 || share > 55 || int(one.asked.Load()+two.asked.Load()) != total.Sent {
		t.Errorf("one of two got %d %% of %d requests, want half", share, total.Sent)
	}
}

// Before the service was ever seen, nothing can be lost. Later, a registry that cannot be
// reached leaves callers with the last list.
func TestTheRegistryIsAway(t *testing.T) {
	s, r := healthy(t), start(t)
	r.list()
	r.fail()
	checktest.Same(t, "sent without an instance", 0, r.total().Sent)
	r.list(s.addr)
	r.sendMore(50)
	if r.Trouble() != nil {
		t.Errorf("the registry is back, but the trouble stayed: %v", r.Trouble())
	}
	r.fail()
	r.sendMore(200)
	r.expectNoneLost(r.finish())
}

// Nothing is retried: not on another instance, and not on another connection when a
// kept-alive one turns out to be dead.
func TestALostRequestIsLost(t *testing.T) {
	var asked atomic.Int64
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1)%2 == 0 { // the second request on a kept-alive connection
			cut(w, r)
		}
	})
	r := start(t, func(o *Options) { o.Rate = 200 })
	r.list(s.addr)
	r.sendMore(100)
	total := r.finish()
	checktest.Same(t, "requests that the server received", s.asked.Load(), int64(total.Sent))
	checktest.Same(t, "lost", total.Sent/2, total.Lost)
}

// A connection for each request is closed properly: no server leaves a body unread.
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
	r.sendMore(50)
	total := r.finish()
	r.expectNoneLost(total)
	if n := int(connections.Load()); n != total.Sent || bodies.Load() != 0 {
		t.Errorf("%d requests had %d connections and %d bytes of body", total.Sent, n, bodies.Load())
	}
}

func TestReasonsOfLosses(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, c := range []struct{ name, addr, want string }{
		{"refused", gone.Listener.Addr().String(), "connection refused"},
		{"503", serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }).addr,
			"answered with 503 Service Unavailable"},
		{"cut", serve(t, cut).addr, "connection closed before the answer"},
		{"hung", serve(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then is the end of the connection noticed
			<-r.Context().Done()
		}).addr, "no answer within 300ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lost atomic.Int64
			r := start(t, func(o *Options) {
				o.Rate, o.Timeout = 100, 300*time.Millisecond
				o.keepLosses, o.OnLost = 2, func(Loss) { lost.Add(1) }
			})
			r.list(c.addr)
			registrytest.Until(t, "a few losses", func() bool { return r.total().Lost >= 3 })
			total, report := r.finish(), r.Report()
			checktest.Same(t, "lost", total.Sent, total.Lost)
			checktest.Same(t, "reasons", map[string]int{c.want: total.Lost}, report.Reasons)
			if len(report.Losses) != 2 || report.Losses[0].Addr != c.addr || int(lost.Load()) != total.Lost {
				t.Errorf("kept losses %+v, want the first two, at %s; %d reported of %d", report.Losses, c.addr, lost.Load(), total.Lost)
			}
		})
	}
}

// Slow answers do not slow the stream: that would hide a stalled server.
func TestTheStreamIsAnOpenLoop(t *testing.T) {
	s, release := stalled(t)
	r := start(t)
	r.list(s.addr)
	registrytest.Until(t, "100 requests under way although none was answered", func() bool { return s.asked.Load() >= 100 })
	release()
	total := r.finish()
	r.expectNoneLost(total)
	if worst := total.Fast.Percentile(100); worst < 50*time.Millisecond {
		t.Errorf("the worst latency is %s, but the server stalled for the time that 100 requests take to arrive", worst)
	}
}

// An empty list is a service that is down, unless its end was announced.
func TestWithoutAnInstanceRequestsAreLost(t *testing.T) {
	s, r := healthy(t), start(t)
	r.list(s.addr)
	r.sendMore(50)
	r.list()
	registrytest.Until(t, "losses", func() bool { return r.total().Lost > 10 })
	if got := r.Report().Reasons; len(got) != 1 || got[NoInstance] == 0 {
		t.Errorf("reasons %v, want %q", got, NoInstance)
	}
}

func TestTheStreamEndsByItselfWithTheService(t *testing.T) {
	s := healthy(t)
	r := start(t, func(o *Options) { o.CacheDelay = 200 * time.Millisecond })
	r.list(s.addr)
	r.sendMore(50)
	r.EndWhenGone()
	r.sendMore(50) // announced, but not gone yet
	r.list()
	total := r.await()
	r.expectNoneLost(total)
	if total.Drained == 0 {
		t.Error("none was answered after the end of the registration")
	}
}

// Requests that were in flight when an instance left the registry, and those that
// callers with a cache still sent to it, are answered.
func TestDrainedRequestsAreCounted(t *testing.T) {
	leaving, staying := healthy(t), healthy(t)
	left := make(chan string, 1)
	r := start(t, func(o *Options) {
		o.slowShare, o.SlowMin, o.SlowMax = 0.5, 100*time.Millisecond, 200*time.Millisecond
		o.CacheDelay = 100 * time.Millisecond
		o.OnChange = func(address string, joined bool) {
			if !joined {
				left <- address
			}
		}
	})
	r.list(leaving.addr, staying.addr)
	r.sendMore(300)
	r.list(staying.addr)
	r.sendMore(300)
	total := r.finish()
	r.expectNoneLost(total)
	if total.DrainedSlow == 0 || total.DrainedSlow >= total.Drained {
		t.Errorf("answered after the instance had left: %d, %d of them slow; want some of each kind", total.Drained, total.DrainedSlow)
	}
	checktest.Same(t, "who left", leaving.addr, <-left)
	if p50 := total.Slow.Percentile(50); p50 < 100*time.Millisecond {
		t.Errorf("slow requests took %s, want at least 100ms", p50)
	}
}

// Requests that a departed instance has yet to answer can still be lost.
func TestRequestsInFlightAreNotSettled(t *testing.T) {
	s, release := stalled(t)
	r := start(t)
	r.list(s.addr)
	r.sendMore(10)
	if !r.Settled(time.Now()) {
		t.Error("nothing has left, and yet it is not settled")
	}
	r.EndWhenGone()
	r.list()
	registrytest.Until(t, "the end of the registration", func() bool { return len(r.Known()) == 0 })
	if r.Settled(time.Now()) {
		t.Error("settled, although requests are left at the instance that is gone")
	}
	release()
	registrytest.Until(t, "the answers", func() bool { return r.Settled(time.Now()) })
	r.expectNoneLost(r.await())
}
