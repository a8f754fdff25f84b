// SPDX-License-Identifier: Apache-2.0

package eureka_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/eureka"
	"github.com/usher-dev/usher/test/registries/fetch"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/registries/internal/try"
)

const (
	// patience bounds every wait for something that must happen.
	patience = 60 * time.Second
	poll     = 50 * time.Millisecond
	// fetchTime bounds a first download.
	fetchTime = 15 * time.Minute
	// cache is the age of the server's lists; waits last twice as long.
	cache = 500 * time.Millisecond
)

// server is a Eureka without peers.
type server struct {
	*servers.Process
	address string
}

// start starts a server with shorter intervals than usual.
func start(t *testing.T) *server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fetchTime)
	defer cancel()
	jars, err := fetch.Maven(ctx, "eureka", "server")
	if err != nil {
		t.Fatal(err)
	}
	main, err := filepath.Abs("server/Server.java")
	if err != nil {
		t.Fatal(err)
	}
	java, err := fetch.Program("java")
	if err != nil {
		t.Fatal(err)
	}
	port := servers.FreePorts(t, 1)[0]
	s := &server{address: fmt.Sprintf("http://127.0.0.1:%d/eureka", port)}
	s.Process = servers.Start(t, servers.Spec{
		Name: "eureka", Path: java, Dir: t.TempDir(), Ready: s.ready,
		Args: []string{"-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", jars + "/*", main,
			"--server.address=127.0.0.1", fmt.Sprintf("--server.port=%d", port),
			"--eureka.client.register-with-eureka=false", "--eureka.client.fetch-registry=false",
			fmt.Sprintf("--eureka.server.response-cache-update-interval-ms=%d", cache.Milliseconds()),
			// Without these, an instance that nobody renews would stay for minutes.
			"--eureka.server.eviction-interval-timer-in-ms=500", "--eureka.server.enable-self-preservation=false"},
	})
	return s
}

func (s *server) ready(ctx context.Context) error {
	return s.do(ctx, http.MethodGet, "/apps", nil, nil)
}

// do sends a test's own request, bypassing the connector.
func (s *server) do(ctx context.Context, method, path string, question, into any) error {
	body := io.Reader(http.NoBody)
	if question != nil {
		data, err := json.Marshal(question)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, s.address+path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s answered %s: %s", path, response.Status, data)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(data, into)
}

func (s *server) must(t *testing.T, method, path string, question any) {
	t.Helper()
	if err := s.do(try.Bounded(t), method, path, question, nil); err != nil {
		t.Fatal(err)
	}
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
	try.Eventually(t, "an empty server", func() bool {
		var said struct {
			Applications struct {
				Application []struct {
					Name     string
					Instance []struct{ InstanceID string }
				}
			}
		}
		if err := s.do(try.Bounded(t), http.MethodGet, "/apps", nil, &said); err != nil {
			t.Fatal(err)
		}
		for _, app := range said.Applications.Application {
			for _, i := range app.Instance {
				// For an instance that is only in the cache, the server answers that it
				// does not exist.
				_ = s.do(try.Bounded(t), http.MethodDelete, "/apps/"+app.Name+"/"+i.InstanceID, nil, nil)
			}
		}
		return len(said.Applications.Application) == 0 && time.Since(began) > 2*cache
	})
}

// connect waits until lists are trusted.
func (s *server) connect(t *testing.T, options eureka.Options) *eureka.Registry {
	t.Helper()
	options.Address = s.address
	if options.Clock == nil {
		options.ResponseCache = 2 * cache
	}
	r, err := eureka.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	try.Eventually(t, "lists to be trusted", func() bool {
		_, err := r.List(try.Bounded(t), "web")
		return err == nil
	})
	return r
}
