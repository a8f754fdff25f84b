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

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/eureka"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/hung"
	"github.com/usher-dev/usher/test/registries/internal/traffic"
	"github.com/usher-dev/usher/test/registries/internal/try"
)

// TestServer uses one server for all tests, since it starts slowly.
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

// testConformance suspends the server's process instead of ending it: Eureka keeps
// nothing on disk.
func testConformance(t *testing.T, s *server) {
	breakIt := func(t *testing.T) {
		if err := s.Hold(); err != nil {
			t.Fatal(err)
		}
	}
	mend := func(t *testing.T) {
		if err := s.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	registrytest.Run(t, func(t *testing.T) registrytest.Subject {
		s.empty(t)
		r := s.connect(t, eureka.Options{})
		return registrytest.Subject{
			Connector: r, HoldsBack: true,
			Seed: func(t *testing.T, _, id string) {
				s.must(t, http.MethodPost, "/apps/WEB", foreign("WEB", id))
				try.Eventually(t, "the foreign entry", func() bool { return len(try.List(t, r)) == 1 })
			},
			Break: breakIt, Mend: mend,
		}
	})
}

// testOthers takes an entry out of service, as Eureka operators do, and changes its
// metadata.
func testOthers(t *testing.T, s *server) {
	r := s.connect(t, eureka.Options{})
	want := try.Instance("a")
	try.Apply(t, r, registry.Put, want)
	for what, path := range map[string]string{
		"a status": "/apps/WEB/a/status?value=OUT_OF_SERVICE", "metadata": "/apps/WEB/a/metadata?zone=z",
	} {
		s.must(t, http.MethodPut, path, nil)
		try.Eventually(t, what+" of others", func() bool { return !try.List(t, r)[0].Same(want) })
		want.Version = try.List(t, r)[0].Version
		try.Apply(t, r, registry.Put, want)
		if have := try.List(t, r); len(have) != 1 || !have[0].Same(want) {
			t.Errorf("after the repair of %s: %+v", what, have)
		}
	}
}

// testSuccessor starts a connector right after another one has written: it reports
// nothing before it knows.
func testSuccessor(t *testing.T, s *server) {
	first := s.connect(t, eureka.Options{})
	try.Apply(t, first, registry.Put, try.Instance("a"))
	second, err := eureka.New(eureka.Options{Address: s.address, ResponseCache: 2 * cache})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	if _, err := second.List(try.Bounded(t), "web"); !errors.Is(err, registry.ErrTransient) {
		t.Errorf("at once: %v, want a transient error", err)
	}
	try.Eventually(t, "a list", func() bool {
		entries, err := second.List(try.Bounded(t), "web")
		if err == nil && len(entries) != 1 {
			t.Fatalf("the first list is %+v", entries)
		}
		return err == nil
	})
}

// testRenewals runs past a short lease several times, and then lets nobody renew it.
func testRenewals(t *testing.T, s *server) {
	clock := clocktesting.NewFakeClock(time.Now())
	const lease = time.Second
	r := s.connect(t, eureka.Options{Clock: clock, Lease: lease})
	try.Apply(t, r, registry.Put, try.Instance("a"))
	try.List(t, r)
	for end := time.Now().Add(6 * lease); time.Now().Before(end); <-time.After(poll) {
		// Otherwise the connector's time stands still: the application is not
		// forgotten.
		clock.Step(eureka.RenewInterval)
		if have := try.List(t, r); len(have) != 1 {
			t.Fatalf("an instance that is renewed is gone: %+v", have)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	try.Eventually(t, "the lease to end", func() bool {
		return s.do(try.Bounded(t), http.MethodGet, "/apps/WEB/a", nil, nil) != nil
	})
}

// testMany writes 3000 entries, and lists them before they are in the cache.
func testMany(t *testing.T, s *server) {
	r := s.connect(t, eureka.Options{})
	var changes []registry.Change
	for n := range 3000 {
		changes = append(changes, registry.Change{Op: registry.Put, Entry: try.Instance(fmt.Sprintf("web-%04d", n))})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	if err := r.Apply(ctx, "web", changes); err != nil {
		t.Fatal(err)
	}
	wrote := time.Since(began)
	if have := try.List(t, r); len(have) != len(changes) {
		t.Errorf("%d entries are listed", len(have))
	}
	t.Logf("written in %s, listed in %s", wrote, time.Since(began)-wrote)
}

// period is how often a caller asks.
const period = 500 * time.Millisecond

// testTraffic rolls instances under a caller that queries the application, as Eureka
// clients do, and gets what is in the server's cache.
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
	hung.Test(t, s.Process, s.connect(t, eureka.Options{}), registry.Change{Op: registry.Put, Entry: try.Instance("a")})
}

// testRestart: the server loses everything, and the list shows that.
func testRestart(t *testing.T, s *server) {
	r := s.connect(t, eureka.Options{})
	try.Apply(t, r, registry.Put, try.Instance("a"))
	if err := s.Restart(try.Bounded(t)); err != nil {
		t.Fatal(err)
	}
	if have := try.List(t, r); len(have) != 0 {
		t.Errorf("listed: %+v", have)
	}
	try.Apply(t, r, registry.Put, try.Instance("a"))
	if have := try.List(t, r); len(have) != 1 {
		t.Errorf("listed: %+v", have)
	}
}
