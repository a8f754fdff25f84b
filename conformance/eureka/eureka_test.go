// SPDX-License-Identifier: Apache-2.0

package eureka_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/usher-dev/usher/conformance/internal/hung"
	"github.com/usher-dev/usher/conformance/internal/traffic"
	"github.com/usher-dev/usher/internal/registry"
	"github.com/usher-dev/usher/internal/registry/eureka"
	"github.com/usher-dev/usher/internal/registry/registrytest"
)

// TestServer has one server for all tests, since it takes long to start.
func TestServer(t *testing.T) {
	s := start(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *server)
	}{
		{"conformance", testConformance},
		{"what others said is undone", testOthers},
		{"the next connector knows what was written", testSuccessor},
		{"renewals", testRenewals},
		{"3000 entries", testMany},
		{"traffic", testTraffic},
		{"hung", testHung},
		{"restart", testRestart},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.empty(t)
			test.run(t, s)
		})
	}
}

// testConformance stops the server's process instead of ending it: Eureka keeps
// nothing on disk.
func testConformance(t *testing.T, s *server) {
	signal := func(signal syscall.Signal) func(t *testing.T) {
		return func(t *testing.T) {
			if err := s.Signal(signal); err != nil {
				t.Fatal(err)
			}
		}
	}
	registrytest.Run(t, func(t *testing.T) registrytest.Subject {
		s.empty(t)
		r := s.connect(t, eureka.Options{})
		return registrytest.Subject{
			Connector: r, HoldsBack: true,
			Seed: func(t *testing.T, _, id string) {
				s.must(t, http.MethodPost, "/apps/WEB", foreign("WEB", id))
				eventually(t, "the foreign entry", func() bool { return len(list(t, r)) == 1 })
			},
			Break: signal(syscall.SIGSTOP), Mend: signal(syscall.SIGCONT),
		}
	})
}

// testOthers takes an entry out of service, as operators of Eureka do, and
// changes its metadata.
func testOthers(t *testing.T, s *server) {
	r := s.connect(t, eureka.Options{})
	want := instance("a")
	put(t, r, want)
	for what, path := range map[string]string{
		"a status": "/apps/WEB/a/status?value=OUT_OF_SERVICE", "metadata": "/apps/WEB/a/metadata?zone=z",
	} {
		s.must(t, http.MethodPut, path, nil)
		eventually(t, what+" of others", func() bool { return !list(t, r)[0].Same(want) })
		want.Version = list(t, r)[0].Version
		put(t, r, want)
		if have := list(t, r); len(have) != 1 || !have[0].Same(want) {
			t.Errorf("after the repair of %s: %+v", what, have)
		}
	}
}

// testSuccessor starts a connector right after another has written: it says
// nothing before it knows.
func testSuccessor(t *testing.T, s *server) {
	first := s.connect(t, eureka.Options{})
	put(t, first, instance("a"))
	second, err := eureka.New(eureka.Options{Address: s.address, ResponseCache: 2 * cache})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	if _, err := second.List(bounded(t), "web"); !errors.Is(err, registry.ErrTransient) {
		t.Errorf("at once: %v, want a transient error", err)
	}
	eventually(t, "a list", func() bool {
		entries, err := second.List(bounded(t), "web")
		if err == nil && len(entries) != 1 {
			t.Fatalf("the first list is %+v", entries)
		}
		return err == nil
	})
}

// testRenewals lets a short lease end several times over, then nobody renew it.
func testRenewals(t *testing.T, s *server) {
	clock := clocktesting.NewFakeClock(time.Now())
	const lease = time.Second
	r := s.connect(t, eureka.Options{Clock: clock, Lease: lease})
	put(t, r, instance("a"))
	list(t, r)
	for end := time.Now().Add(6 * lease); time.Now().Before(end); <-time.After(poll) {
		// The connector's time stands still but for this: the application is not forgotten.
		clock.Step(eureka.RenewInterval)
		if have := list(t, r); len(have) != 1 {
			t.Fatalf("an instance that is renewed is gone: %+v", have)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease to end", func() bool {
		return s.do(bounded(t), http.MethodGet, "/apps/WEB/a", nil, nil) != nil
	})
}

// testMany writes 3000 entries, and lists them before the cache knows them.
func testMany(t *testing.T, s *server) {
	r := s.connect(t, eureka.Options{})
	var changes []registry.Change
	for n := range 3000 {
		changes = append(changes, registry.Change{Op: registry.Put, Entry: instance(fmt.Sprintf("web-%04d", n))})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	if err := r.Apply(ctx, "web", changes); err != nil {
		t.Fatal(err)
	}
	wrote := time.Since(began)
	if have := list(t, r); len(have) != len(changes) {
		t.Errorf("%d entries are listed", len(have))
	}
	t.Logf("written in %s, listed in %s", wrote, time.Since(began)-wrote)
}

// period is how often a caller asks.
const period = 500 * time.Millisecond

// testTraffic rolls instances under a caller that asks for the application, as
// clients of Eureka do, and gets what is in the server's cache.
func testTraffic(t *testing.T, s *server) {
	service := traffic.Service{Connector: s.connect(t, eureka.Options{}), Name: "web", Propagation: 2*cache + 2*period}
	traffic.Roll(t, service, func(t *testing.T) func() []string {
		var known atomic.Pointer[[]string]
		known.Store(&[]string{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for tick := time.NewTicker(period); ctx.Err() == nil; {
				if addresses, err := s.callable(ctx, "WEB"); err == nil {
					known.Store(&addresses)
				}
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		}()
		t.Cleanup(func() { cancel(); <-ended })
		return func() []string { return *known.Load() }
	})
}

// callable are the addresses that a caller gets.
func (s *server) callable(ctx context.Context, app string) ([]string, error) {
	var said struct {
		Application struct {
			Instance []struct {
				IPAddr, Status string
				Port           struct {
					Number int `json:"$"`
				}
			}
		}
	}
	if err := s.do(ctx, http.MethodGet, "/apps/"+app, nil, &said); err != nil {
		return nil, err
	}
	var addresses []string
	for _, i := range said.Application.Instance {
		if i.Status == "UP" {
			addresses = append(addresses, fmt.Sprintf("%s:%d", i.IPAddr, i.Port.Number))
		}
	}
	return addresses, nil
}

func testHung(t *testing.T, s *server) {
	hung.Test(t, s.Process, s.connect(t, eureka.Options{}), registry.Change{Op: registry.Put, Entry: instance("a")})
}

// testRestart loses everything with the server, which is listed as it is.
func testRestart(t *testing.T, s *server) {
	r := s.connect(t, eureka.Options{})
	put(t, r, instance("a"))
	if err := s.Restart(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if have := list(t, r); len(have) != 0 {
		t.Errorf("listed: %+v", have)
	}
	put(t, r, instance("a"))
	if have := list(t, r); len(have) != 1 {
		t.Errorf("listed: %+v", have)
	}
}
