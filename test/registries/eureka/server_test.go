// SPDX-License-Identifier: Apache-2.0

package eureka_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/eureka"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

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

// connect waits until lists are trusted.
func (s *server) connect(t *testing.T, options eureka.Options) *eureka.Registry {
	t.Helper()
	options.Address = s.Address
	if options.Clock == nil {
		options.ResponseCache = 2 * cache
	}
	r := registrytest.Connect(t, eureka.New, options)
	registrytest.Eventually(t, "lists to be trusted", func() string {
		_, err := r.List(registrytest.Bounded(t), "web")
		return registrytest.Unless(err == nil, fmt.Sprint(err))
	})
	return r
}
