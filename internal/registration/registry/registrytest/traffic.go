// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// requestTimeout is when a request counts as lost.
const requestTimeout = 30 * time.Second

// Instance is a server on loopback that counts the requests it has answered.
type Instance struct {
	// Entry is what its registry should list.
	Entry registry.Entry
	// Served counts its answers.
	Served atomic.Int64
	// Kill ends it at once, like the end of a process: requests in flight are lost.
	Kill func()
}

// Start starts an HTTP server on a free port, until Kill or the test's end. It answers a
// request with ?slow=DURATION after that time.
func Start(t *testing.T, name string) *Instance {
	t.Helper()
	return StartOn(t, name, "127.0.0.1:0", ServeHTTP)
}

// StartOn is Start for any address and protocol: serve starts a server and returns what
// ends it.
func StartOn(t *testing.T, name, address string, serve func(*Instance, net.Listener) (kill func())) *Instance {
	t.Helper()
	listener := checktest.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", address))(t)
	at := listener.Addr().(*net.TCPAddr)
	i := &Instance{Entry: Entry("demo." + name + ".00000000")}
	i.Entry.Address, i.Entry.Port, i.Entry.Metadata = at.IP.String(), int32(at.Port), nil
	i.Entry.Owner.Pod, i.Entry.Owner.PodUID = name, "00000000-"+name
	i.Kill = serve(i, listener)
	t.Cleanup(i.Kill)
	return i
}

// ServeHTTP is what Start starts, for StartOn.
func ServeHTTP(i *Instance, listener net.Listener) (kill func()) {
	server := &http.Server{ReadHeaderTimeout: requestTimeout, Handler: http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) {
			if slow, err := time.ParseDuration(r.URL.Query().Get("slow")); err == nil {
				select {
				case <-time.After(slow):
				case <-r.Context().Done():
				}
			}
			i.Served.Add(1)
		})}
	go func() { _ = server.Serve(listener) }()
	return func() { _ = server.Close() }
}

// AwaitMore waits until the instance has answered n more requests.
func (i *Instance) AwaitMore(t *testing.T, n int64) {
	t.Helper()
	want := i.Served.Load() + n
	Eventually(t, "requests to "+i.Entry.ID, func() string {
		have := i.Served.Load()
		return Unless(have >= want, fmt.Sprintf("it has answered %d, want %d", have, want))
	})
}

// Callers send requests until they are stopped.
type Callers struct {
	answers atomic.Int64
	stop    func()

	mu     sync.Mutex
	losses []error
}

// Call starts n callers, which continue until Stop or the test's end. Each sends one
// request after another, with a pause in between.
func Call(t *testing.T, n int, pause time.Duration, send func(ctx context.Context) error) *Callers {
	t.Helper()
	c := &Callers{}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			repeat(ctx, pause, func() bool {
				c.count(once(ctx, send))
				return true
			})
		})
	}
	c.stop = func() { cancel(); all.Wait() }
	t.Cleanup(c.stop)
	return c
}

// repeat does something again and again, with a pause in between, until it does not go on.
func repeat(ctx context.Context, pause time.Duration, again func() bool) {
	for ctx.Err() == nil && again() {
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// once gives a request its own timeout, so that it is not lost when the callers stop.
func once(ctx context.Context, send func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	return send(ctx)
}

func (c *Callers) count(err error) {
	if err == nil {
		c.answers.Add(1)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.losses = append(c.losses, err)
}

// Answers returns how many requests have succeeded so far.
func (c *Callers) Answers() int64 { return c.answers.Load() }

// Lost returns how many requests have been lost so far.
func (c *Callers) Lost() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.losses))
}

// Stop ends the callers.
func (c *Callers) Stop() { c.stop() }

// StopWithoutLoss ends the callers, and checks that no request has been lost.
func (c *Callers) StopWithoutLoss(t *testing.T) {
	t.Helper()
	c.stop()
	c.CheckNoneLost(t)
}

// CheckNoneLost checks that no request has been lost so far.
func (c *Callers) CheckNoneLost(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.losses) > 0 {
		t.Errorf("%d requests were lost beside %d answers: %.5v", len(c.losses), c.Answers(), c.losses)
	}
	t.Logf("%d answers, %d requests lost", c.Answers(), len(c.losses))
}

// Get sends requests to where the next one is due. An error of where counts as a lost
// request. Clients send a POST only once, unless not a single byte of it was sent.
func Get(client *http.Client, where func(ctx context.Context) (string, error)) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		address, err := where(ctx)
		if err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address, http.NoBody)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }() // It has been read.
		if _, err := io.ReadAll(response.Body); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	}
}

// InTurn chooses one address after another.
func InTurn(addresses func() []string) func(context.Context) (string, error) {
	var turn atomic.Int64
	return func(context.Context) (string, error) {
		known := addresses()
		if len(known) == 0 {
			return "", errors.New("the registry lists no instance")
		}
		return known[int(turn.Add(1))%len(known)], nil
	}
}

// Follow is a caller's view of a registry: it lists the addresses of a service again and
// again, with a pause in between, and returns a function with the latest ones.
func Follow(t *testing.T, pause time.Duration, list func(ctx context.Context) ([]string, error)) func() []string {
	t.Helper()
	return Told(t, func(ctx context.Context, tell func(addresses []string)) (err error) {
		repeat(ctx, pause, func() bool {
			var addresses []string
			if addresses, err = list(ctx); err == nil {
				tell(addresses)
			}
			return err == nil
		})
		return err
	})
}

// Told is Follow for a caller whom follow tells the addresses, and again all of them after each change,
// until its context ends.
func Told(t *testing.T, follow func(ctx context.Context, tell func(addresses []string)) error) func() []string {
	t.Helper()
	var known atomic.Pointer[[]string]
	known.Store(&[]string{})
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() {
		err := follow(ctx, func(addresses []string) { known.Store(&addresses) })
		if ctx.Err() == nil {
			t.Errorf("a caller cannot follow the instances: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); following.Wait() })
	return func() []string { return *known.Load() }
}

// Rollout replaces instances under traffic.
type Rollout struct {
	Connector registry.Connector
	// Service is the service's name; "web" if empty.
	Service string
	// Propagation is how long callers may take to learn of a change.
	Propagation time.Duration
	// Metadata is what every entry has.
	Metadata map[string]string
	// Start starts the n-th instance; nil for an HTTP server on a free port.
	Start func(n int) *Instance
	// Dial replaces the client's dialer, unless nil.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Then changes the last three instances, under traffic and without a loss, unless nil.
	Then func(instances []*Instance)
}

// Run replaces each of three instances as a rollout does: it is removed from the
// registry, the propagation time passes, it ends, and another one joins. No request may
// be lost. Then an instance ends that is still listed: requests must be lost, or the
// traffic would prove nothing.
//
// Run calls follow when three instances are listed. It returns a function with the
// addresses that a caller sees at the moment of each request.
func (r Rollout) Run(t *testing.T, follow func(t *testing.T) func() []string) {
	t.Helper()
	r.Service = cmp.Or(r.Service, service)
	if r.Start == nil {
		r.Start = func(n int) *Instance { return Start(t, fmt.Sprintf("web-%d", n)) }
	}
	var instances []*Instance
	for n := range 3 {
		instances = append(instances, r.join(t, n))
	}
	addresses := follow(t)
	Eventually(t, "three instances", func() string {
		known := addresses()
		return Unless(len(known) == 3, fmt.Sprintf("a caller knows %v", known))
	})
	// With a new connection each, a client retries nothing, which would hide a lost
	// request.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: r.Dial}}
	callers := Call(t, 4, 5*time.Millisecond, Get(client, InTurn(addresses)))
	for n, old := range instances {
		old.AwaitMore(t, 1)
		instances[n] = r.join(t, 3+n)
		instances[n].AwaitMore(t, 1)
		r.leave(t, old)
	}
	if r.Then != nil {
		r.Then(instances)
	}
	callers.CheckNoneLost(t)
	// It would have seen a loss.
	instances[0].Kill()
	Until(t, "a lost request", func() bool { return callers.Lost() > 0 })
}

func (r Rollout) join(t *testing.T, n int) *Instance {
	t.Helper()
	i := r.Start(n)
	i.Entry.Metadata = r.Metadata
	if Find(change(t, r.Connector, r.Service, put(i.Entry)), i.Entry.ID) == nil {
		t.Fatalf("%s is not listed", i.Entry.ID)
	}
	return i
}

func (r Rollout) leave(t *testing.T, i *Instance) {
	t.Helper()
	if Find(change(t, r.Connector, r.Service, remove(i.Entry)), i.Entry.ID) != nil {
		t.Fatalf("%s is still listed", i.Entry.ID)
	}
	// This delay is under test; it does not wait for a condition.
	<-time.After(r.Propagation)
	i.Kill()
}
