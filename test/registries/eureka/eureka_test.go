// SPDX-License-Identifier: Apache-2.0

package eureka_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/eureka"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

// TestServer uses one server for all tests, since it starts slowly.
func TestServer(t *testing.T) {
	s := start(t)
	play := func(name string, test func(*testing.T, *server)) {
		t.Run(name, func(t *testing.T) {
			s.empty(t)
			test(t, s)
		})
	}
	play("conformance", testConformance)
	play("changes of others are undone", testOthers)
	play("the next connector knows what was written", testSuccessor)
	play("renewals", testRenewals)
	play("self-registered", testSelfRegistered)
	// They are listed before they are in the cache.
	play("3000 entries", func(t *testing.T, s *server) { registrytest.PutMany(t, s.connect(t), 3000) })
	play("traffic", testTraffic)
	play("restart", testRestart)
}

// testConformance suspends the server's process instead of ending it: Eureka keeps
// nothing on disk.
func testConformance(t *testing.T, s *server) {
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		s.empty(t)
		r := s.connect(t)
		return registrytest.Fixture{
			Connector: r, HoldsBack: true,
			Seed: func(_, id string) {
				servers.Must(t, s.HTTP, http.MethodPost, "/apps/WEB", foreign("WEB", id), nil)
				registrytest.Until(t, "the foreign entry", func() bool { return len(registrytest.List(t, r)) == 1 })
			},
			Break: s.Hang, Mend: func(context.Context) error { return s.Resume() },
			Hang: s.Hang, Resume: s.Resume,
		}
	})
}

// testOthers takes an entry out of service, as Eureka operators do, and changes its
// metadata.
func testOthers(t *testing.T, s *server) {
	r := s.connect(t)
	want := registrytest.Entry("a")
	registrytest.Put(t, r, want)
	for what, path := range map[string]string{
		"a status": "/apps/WEB/a/status?value=OUT_OF_SERVICE", "metadata": "/apps/WEB/a/metadata?zone=z",
	} {
		servers.Must(t, s.HTTP, http.MethodPut, path, nil, nil)
		registrytest.Until(t, what+" of others", func() bool { return !registrytest.Only(t, r).Same(want) })
		registrytest.Heals(t, what, r, want)
		registrytest.Only(t, r)
	}
}

// testSuccessor starts a connector right after another one has written: it reports
// nothing before it knows.
func testSuccessor(t *testing.T, s *server) {
	registrytest.Put(t, s.connect(t), registrytest.Entry("a"))
	second := registrytest.Connect(eureka.New(s.spec(2*cache), nil, clock.RealClock{}))(t)
	_, err := second.List(registrytest.Bounded(t), "web")
	registrytest.Check(t, "a list at once", err, registry.ErrTransient)
	registrytest.Eventually(t, "a list", func() string {
		entries, err := second.List(registrytest.Bounded(t), "web")
		if err == nil && len(entries) != 1 {
			t.Fatalf("the first list is %+v", entries)
		}
		return registrytest.Unless(err == nil, fmt.Sprint(err))
	})
}

// testRenewals runs past a short lease several times, and then lets nobody renew it.
func testRenewals(t *testing.T, s *server) {
	clock := clocktesting.NewFakeClock(time.Now())
	const lease = time.Second
	spec := s.spec(0)
	spec.Lease = &metav1.Duration{Duration: lease}
	r := registrytest.Connect(eureka.New(spec, nil, clock))(t)
	registrytest.Put(t, r, registrytest.Entry("a"))
	for end := time.Now().Add(6 * lease); time.Now().Before(end); <-time.After(lease / 20) {
		// Otherwise the connector's time stands still: the application is not
		// forgotten.
		clock.Step(eureka.RenewInterval)
		registrytest.Only(t, r)
	}
	checktest.NoError(t, r.Close())
	registrytest.Eventually(t, "the lease to end", func() string {
		_, err := s.Do(registrytest.Bounded(t), http.MethodGet, "/apps/WEB/a", nil, nil)
		return registrytest.Unless(err != nil, "the instance is still there")
	})
}

// testTraffic rolls instances under a caller that queries the application, as Eureka
// clients do, and gets what is in the server's cache.
func testTraffic(t *testing.T, s *server) {
	const period = 500 * time.Millisecond
	rollout := registrytest.Rollout{Connector: s.connect(t), Propagation: 2*cache + 2*period}
	rollout.Run(t, func(t *testing.T) func() []string {
		return registrytest.Follow(t, period, s.callable)
	})
}

// callable returns the addresses that a caller gets.
func (s *server) callable(ctx context.Context) (addresses []string, err error) {
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
	_, err = s.Do(ctx, http.MethodGet, "/apps/WEB", nil, &said)
	if err != nil && strings.Contains(err.Error(), "404") {
		return nil, nil // The cache does not have the application yet.
	}
	for _, i := range said.Application.Instance {
		if i.Status == "UP" {
			addresses = append(addresses, fmt.Sprintf("%s:%d", i.IPAddr, i.Port.Number))
		}
	}
	return addresses, err
}

// testRestart loses everything on the server, and the list shows that.
func testRestart(t *testing.T, s *server) {
	r := s.connect(t)
	registrytest.Put(t, r, registrytest.Entry("a"))
	checktest.NoError(t, s.Restart(registrytest.Bounded(t)))
	registrytest.CheckNone(t, "after a restart", registrytest.List(t, r))
	registrytest.Put(t, r, registrytest.Entry("a"))
	registrytest.Only(t, r)
}

// testSelfRegistered has applications register themselves, with the requests of Eureka's own client: a registration
// when it starts, heartbeats, and another registration when a heartbeat's answer is 404.
func testSelfRegistered(t *testing.T, s *server) {
	registrytest.RunSelfRegistered(t, func(t *testing.T) registrytest.SelfRegistered {
		s.empty(t)
		return registrytest.SelfRegistered{
			Connector: s.connect(t), Register: s.register, Beat: s.beat,
			Leave: func(t *testing.T, address string, port int32) {
				servers.Must(t, s.HTTP, http.MethodDelete, pathOfOwn(address, port), nil, nil)
			},
			Callers: func(t *testing.T) []string { return checktest.Must(s.callable(registrytest.Bounded(t)))(t) },
			Forget:  func(t *testing.T) { checktest.NoError(t, s.Restart(registrytest.Bounded(t))) },
		}
	})
}

func pathOfOwn(address string, port int32) string {
	return fmt.Sprintf("/apps/WEB/%s:web:%d", address, port)
}

func (s *server) register(t *testing.T, address string, port int32) {
	own := foreign("WEB", fmt.Sprintf("%s:web:%d", address, port))["instance"].(map[string]any)
	own["hostName"], own["ipAddr"], own["port"] = address, address, map[string]any{"$": port, "@enabled": "true"}
	own["lastDirtyTimestamp"] = time.Now().UnixMilli()
	servers.Must(t, s.HTTP, http.MethodPost, "/apps/WEB", map[string]any{"instance": own}, nil)
}

func (s *server) beat(t *testing.T, address string, port int32) {
	_, err := s.Do(registrytest.Bounded(t), http.MethodPut, pathOfOwn(address, port)+"?status=UP", nil, nil)
	switch {
	case err != nil && strings.Contains(err.Error(), "404"):
		s.register(t, address, port)
	case err != nil:
		t.Fatal(err)
	}
}

// cache is the age of the server's lists; waits last twice as long.
const cache = 500 * time.Millisecond

// server is a Eureka without peers.
type server struct {
	*run.Process
	run.HTTP
}

// start starts a server with shorter intervals than usual.
func start(t *testing.T) *server {
	t.Helper()
	port := servers.FreePorts(t, 1)[0]
	s := &server{HTTP: run.HTTP{Address: fmt.Sprintf("http://127.0.0.1:%d/eureka", port)}}
	s.Process = servers.Start(t, run.Spec{
		Name: "eureka", Path: "java", Dir: t.TempDir(), Ready: s.ready,
		Args: slices.Concat([]string{"-Xmx256m", "-XX:TieredStopAtLevel=1"}, servers.Java(t, "eureka", "server"), []string{
			"--server.address=127.0.0.1", fmt.Sprintf("--server.port=%d", port),
			"--eureka.client.register-with-eureka=false", "--eureka.client.fetch-registry=false",
			fmt.Sprintf("--eureka.server.response-cache-update-interval-ms=%d", cache.Milliseconds()),
			// Without these, an instance that nobody renews would stay for minutes.
			"--eureka.server.eviction-interval-timer-in-ms=500", "--eureka.server.enable-self-preservation=false"}),
	})
	return s
}

func (s *server) ready(ctx context.Context) error {
	_, err := s.Do(ctx, http.MethodGet, "/apps", nil, nil)
	return err
}

// foreign is an instance as other clients register it.
func foreign(app, id string) map[string]any {
	return map[string]any{"instance": map[string]any{
		"instanceId": id, "app": app, "hostName": "192.0.2.1", "ipAddr": "192.0.2.1", "vipAddress": app, "status": "UP",
		"port":           map[string]any{"$": 1, "@enabled": "true"},
		"dataCenterInfo": map[string]any{"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"},
		"leaseInfo":      map[string]any{"renewalIntervalInSecs": 30, "durationInSecs": 3600},
	}}
}

// empty removes everything, and waits until the list shows that. The list may also be
// empty because it is older than the entries.
func (s *server) empty(t *testing.T) {
	t.Helper()
	began := time.Now()
	registrytest.Eventually(t, "an empty server", func() string {
		var said struct {
			Applications struct {
				Application []struct {
					Name     string
					Instance []struct{ InstanceID string }
				}
			}
		}
		servers.Must(t, s.HTTP, http.MethodGet, "/apps", nil, &said)
		for _, app := range said.Applications.Application {
			for _, i := range app.Instance {
				// For an instance that is only in the cache, the server answers that it
				// does not exist.
				_, _ = s.Do(registrytest.Bounded(t), http.MethodDelete, "/apps/"+app.Name+"/"+i.InstanceID, nil, nil)
			}
		}
		return registrytest.Unless(len(said.Applications.Application) == 0 && time.Since(began) > 2*cache, "it lists instances")
	})
}

func (s *server) spec(cache time.Duration) *usherv1alpha1.EurekaRegistry {
	return &usherv1alpha1.EurekaRegistry{Address: s.Address, ResponseCache: &metav1.Duration{Duration: cache}}
}

// connect waits until lists are trusted.
func (s *server) connect(t *testing.T) *eureka.Registry {
	t.Helper()
	r := registrytest.Connect(eureka.New(s.spec(2*cache), nil, clock.RealClock{}))(t)
	registrytest.Eventually(t, "lists to be trusted", func() string {
		_, err := r.List(registrytest.Bounded(t), "web")
		return registrytest.Unless(err == nil, fmt.Sprint(err))
	})
	return r
}
