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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const bound = 20 * time.Second

// eventually waits for a condition, which may take long on a busy machine.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(bound)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("waited %s for: %s", bound, what)
		case <-tick.C:
		}
	}
}

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
	stop context.CancelFunc
	done chan error
}

func start(t *testing.T, options Options) *running {
	t.Helper()
	client, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{Client: client, stop: stop, done: make(chan error, 1)}
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
	eventually(t, "more requests", func() bool { return r.sent() >= target })
}

// server answers everything, slow requests after the requested time.
func server(t *testing.T, version string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d, err := time.ParseDuration(r.URL.Query().Get("d")); err == nil {
			select {
			case <-time.After(d):
			case <-r.Context().Done():
			}
		}
		_, _ = fmt.Fprintf(w, `{"version":%q}`, version)
	}))
	t.Cleanup(s.Close)
	return s
}

func addr(s *httptest.Server) string { return s.Listener.Addr().String() }

// quick is a stream for tests: no lag, no slow requests unless asked for.
func quick(source Source) Options {
	return Options{Source: source, Rate: 1000, CacheDelay: -1, SlowShare: -1, Timeout: 5 * time.Second}
}

func TestAHealthyServiceLosesNothing(t *testing.T) {
	one, two := newPair(t)
	reg := newRegistry()
	r := start(t, quick(reg))
	r.Section("steady")
	reg.list(addr(one), addr(two))
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

func newPair(t *testing.T) (one, two *httptest.Server) {
	t.Helper()
	one = server(t, "v1")
	two = server(t, "v2")
	return one, two
}

// Before the service was ever seen, nothing can be lost.
func TestTheStreamBeginsWithTheFirstInstance(t *testing.T) {
	s := server(t, "v1")
	reg := newRegistry()
	r := start(t, quick(reg))
	reg.list()
	reg.fail()
	eventually(t, "the trouble to be heard of", func() bool { return r.Trouble() != nil })
	if stats := r.Stats(time.Now()); stats.Sent != 0 || !stats.Started.IsZero() {
		t.Errorf("without an instance: sent %d, started %s", stats.Sent, stats.Started)
	}
	reg.list(addr(s))
	r.sendMore(t, 50)
	if r.Trouble() != nil {
		t.Errorf("the registry is back, but the trouble stayed: %v", r.Trouble())
	}
	if total := r.finish(t); total.Lost != 0 {
		t.Errorf("lost %d", total.Lost)
	}
}

// Nothing is retried: not on another instance, and not on another connection when a
// kept-alive one turns out to be dead.
func TestALostRequestIsLost(t *testing.T) {
	var asked atomic.Int64
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1)%2 == 0 { // the second request on a kept-alive connection
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}
	}))
	defer cut.Close()
	reg := newRegistry()
	options := quick(reg)
	options.Rate = 200
	r := start(t, options)
	reg.list(addr(cut))
	r.sendMore(t, 100)
	total := r.finish(t)
	if int64(total.Sent) != asked.Load() {
		t.Errorf("%d requests were sent, but the server was asked %d times", total.Sent, asked.Load())
	}
	if half := total.Sent / 2; total.Lost != half {
		t.Errorf("lost %d of %d, want %d", total.Lost, total.Sent, half)
	}
}

func TestReasonsOfLosses(t *testing.T) {
	refused := closedPort(t)
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer busy.Close()
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the connection is reset, not closed
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	}))
	defer cut.Close()
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is the end of the connection noticed
		<-r.Context().Done()
	}))
	defer hung.Close()
	for _, c := range []struct{ name, addr, want string }{
		{"refused", refused, "connection refused"},
		{"503", addr(busy), "answered with 503 Service Unavailable"},
		{"cut", addr(cut), "connection closed before the answer"},
		{"hung", addr(hung), "no answer within 300ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg := newRegistry()
			options := quick(reg)
			options.Rate, options.Timeout = 100, 300*time.Millisecond
			options.SlowMin, options.SlowMax = time.Millisecond, time.Millisecond
			options.KeepLosses = 2
			r := start(t, options)
			r.Section("only")
			reg.list(c.addr)
			eventually(t, "a few losses", func() bool { return r.lost() >= 3 })
			total := r.finish(t)
			report := r.Report()
			if total.Lost != total.Sent || len(report.Reasons) != 1 || report.Reasons[0] != (ReasonCount{c.want, total.Lost}) {
				t.Errorf("lost %d of %d for %v, want all for %q", total.Lost, total.Sent, report.Reasons, c.want)
			}
			if len(report.Losses) != 2 || report.Losses[0].Addr != c.addr || report.Losses[0].Section != "only" {
				t.Errorf("kept losses %+v, want the first two, at %s", report.Losses, c.addr)
			}
		})
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// Slow answers do not slow the stream: that would hide a stalled server.
func TestTheStreamIsAnOpenLoop(t *testing.T) {
	release := make(chan struct{})
	stalled := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer stalled.Close()
	reg := newRegistry()
	r := start(t, quick(reg))
	reg.list(addr(stalled))
	eventually(t, "100 requests under way although none was answered", func() bool {
		return r.Stats(time.Now()).InFlight >= 100
	})
	close(release)
	total := r.finish(t)
	if total.Lost != 0 {
		t.Errorf("lost %d", total.Lost)
	}
	if worst := total.Fast.Percentile(100); worst < 50*time.Millisecond {
		t.Errorf("the worst latency is %s, but the server stalled for the time that 100 requests take to arrive", worst)
	}
}

func TestTooManyInFlightAreLost(t *testing.T) {
	release := make(chan struct{})
	var once sync.Once
	stalled := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer stalled.Close()
	defer once.Do(func() { close(release) })
	reg := newRegistry()
	options := quick(reg)
	options.MaxInFlight = 10
	r := start(t, options)
	reg.list(addr(stalled))
	eventually(t, "an overload", func() bool { return r.lost() > 5 })
	if in := r.Stats(time.Now()).InFlight; in > 10 {
		t.Errorf("%d are in flight, want at most 10", in)
	}
	once.Do(func() { close(release) })
	total := r.finish(t)
	if want := []ReasonCount{{reasonOverload, total.Lost}}; len(r.Report().Reasons) != 1 || r.Report().Reasons[0] != want[0] {
		t.Errorf("reasons %v, want %v", r.Report().Reasons, want)
	}
}

// A registry that cannot be reached leaves callers with the last list.
func TestAnOutageKeepsTheLastList(t *testing.T) {
	s := server(t, "v1")
	reg := newRegistry()
	r := start(t, quick(reg))
	reg.list(addr(s))
	reg.fail()
	eventually(t, "the outage to be heard of", func() bool { return r.Trouble() != nil })
	r.sendMore(t, 200)
	if total := r.finish(t); total.Lost != 0 {
		t.Errorf("lost %d in the outage", total.Lost)
	}
}

// An empty list is a service that is down, unless its end was announced.
func TestWithoutAnInstanceRequestsAreLost(t *testing.T) {
	s := server(t, "v1")
	reg := newRegistry()
	r := start(t, quick(reg))
	reg.list(addr(s))
	r.sendMore(t, 50)
	reg.list()
	eventually(t, "losses", func() bool { return r.lost() > 10 })
	if got := r.Report().Reasons; len(got) != 1 || got[0].Reason != reasonNoInstance {
		t.Errorf("reasons %v, want %q", got, reasonNoInstance)
	}
}

func TestTheStreamEndsByItselfWithTheService(t *testing.T) {
	s := server(t, "v1")
	reg := newRegistry()
	options := quick(reg)
	options.CacheDelay = 200 * time.Millisecond
	r := start(t, options)
	reg.list(addr(s))
	r.sendMore(t, 50)
	r.EndWhenGone()
	r.sendMore(t, 50) // announced, but not gone yet
	reg.list()
	total := r.await(t)
	if total.Lost != 0 || total.Drained == 0 {
		t.Errorf("lost %d, answered after the end of the registration %d; want none lost, some answered", total.Lost, total.Drained)
	}
}

// Requests that were in flight when an instance left the registry, and those that
// callers with a cache still sent to it, are answered.
func TestDrainedRequestsAreCounted(t *testing.T) {
	leaving := server(t, "v1")
	staying := server(t, "v1")
	reg := newRegistry()
	options := quick(reg)
	options.SlowShare, options.SlowMin, options.SlowMax = 0.5, 100*time.Millisecond, 200*time.Millisecond
	options.CacheDelay = 100 * time.Millisecond
	var mu sync.Mutex
	heard := []string{}
	options.OnChange = func(c Change) {
		mu.Lock()
		defer mu.Unlock()
		if !c.Joined {
			heard = append(heard, c.Addr)
		}
	}
	r := start(t, options)
	reg.list(addr(leaving), addr(staying))
	r.sendMore(t, 300)
	reg.list(addr(staying))
	r.sendMore(t, 300)
	total := r.finish(t)
	if total.Lost != 0 {
		t.Fatalf("lost %d", total.Lost)
	}
	if total.DrainedSlow == 0 || total.DrainedSlow >= total.Drained {
		t.Errorf("answered after the instance had left: %d, %d of them slow; want some of each kind", total.Drained, total.DrainedSlow)
	}
	if got := strings.Join(heard, " "); got != addr(leaving) {
		t.Errorf("heard that %q left, want %q", got, addr(leaving))
	}
	if p50 := total.Slow.Percentile(50); p50 < 100*time.Millisecond {
		t.Errorf("slow requests took %s, want at least 100ms", p50)
	}
}

// Requests that a departed instance has yet to answer can still be lost.
func TestRequestsInFlightAreNotSettled(t *testing.T) {
	release := make(chan struct{})
	stalled := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer stalled.Close()
	reg := newRegistry()
	r := start(t, quick(reg))
	reg.list(addr(stalled))
	r.sendMore(t, 10)
	if !r.Settled(time.Now()) {
		t.Error("nothing has left, and yet it is not settled")
	}
	r.EndWhenGone()
	reg.list()
	eventually(t, "the end of the registration to be heard of", func() bool {
		return !r.Stats(time.Now()).Instances[0].Registered
	})
	if r.Settled(time.Now()) {
		t.Error("settled, although requests are left at the instance that is gone")
	}
	close(release)
	eventually(t, "the answers", func() bool { return r.Settled(time.Now()) })
	if total := r.await(t); total.Lost != 0 {
		t.Errorf("lost %d", total.Lost)
	}
}

func TestSectionsSplitTheStream(t *testing.T) {
	s := server(t, "v1")
	reg := newRegistry()
	r := start(t, quick(reg))
	r.Section("never begun")
	r.Section("one")
	reg.list(addr(s))
	r.sendMore(t, 50)
	r.Section("two")
	r.sendMore(t, 50)
	total := r.finish(t)
	sections := r.Report().Sections
	if len(sections) != 2 || sections[0].Name != "one" || sections[1].Name != "two" {
		t.Fatalf("sections %+v, want one and two", sections)
	}
	if sections[0].To != sections[1].From || sections[1].To <= sections[1].From || sections[0].From != 0 {
		t.Errorf("bounds %s–%s and %s–%s", sections[0].From, sections[0].To, sections[1].From, sections[1].To)
	}
	if sections[0].Sent+sections[1].Sent != total.Sent || sections[0].Sent < 50 {
		t.Errorf("sent %d and %d, in sum %d", sections[0].Sent, sections[1].Sent, total.Sent)
	}
}

// A loss belongs to the section in which it happened.
func TestALossCountsWhereItWasFound(t *testing.T) {
	cut := make(chan struct{})
	stalled := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-cut
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	}))
	defer stalled.Close()
	reg := newRegistry()
	options := quick(reg)
	options.Rate = 20
	r := start(t, options)
	r.Section("before")
	reg.list(addr(stalled))
	r.sendMore(t, 3)
	r.Section("deed")
	close(cut)
	eventually(t, "three losses", func() bool { return r.lost() >= 3 })
	r.finish(t)
	for _, section := range r.Report().Sections {
		if want := 0; section.Name == "before" && (section.Lost != want || section.Sent < 3) {
			t.Errorf("before the deed %d of %d were lost, want %d", section.Lost, section.Sent, want)
		}
	}
	for _, loss := range r.Report().Losses {
		if loss.Section != "deed" {
			t.Errorf("a loss in section %q, want all in the deed's", loss.Section)
		}
	}
}

func TestRunEndsBeforeAnyInstanceWasSeen(t *testing.T) {
	reg := newRegistry()
	r := start(t, quick(reg))
	reg.fail()
	eventually(t, "the trouble", func() bool { return r.Trouble() != nil })
	r.stop()
	select {
	case err := <-r.done:
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "etcd is away") {
			t.Errorf("Run: %v, want the interruption and the trouble", err)
		}
	case <-time.After(bound):
		t.Fatal("Run did not end")
	}
}

// A dial timeout is not reported as a late answer.
func TestReasonOfADialThatTimesOut(t *testing.T) {
	_, err := (&net.Dialer{Timeout: time.Nanosecond}).DialContext(t.Context(), "tcp", closedPort(t))
	if got, want := reason(err, time.Minute), "no connection within 2s"; got != want {
		t.Errorf("reason(%v) = %q, want %q", err, got, want)
	}
}
