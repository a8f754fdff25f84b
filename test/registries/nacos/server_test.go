// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/nacos"
	"github.com/usher-dev/usher/test/registries/fetch"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/registries/internal/try"
)

const (
	// patience bounds every wait for something that must happen.
	patience = 2 * time.Minute
	poll     = 50 * time.Millisecond
	// fetchTime bounds a first download.
	fetchTime = 15 * time.Minute

	instancePath = "/nacos/v3/admin/ns/instance"
)

// server is a single-member Nacos.
type server struct {
	*servers.Process
	address string
	checks  bool // Whether it checks instances' ports itself.
	roots   int
}

// root is a namespace that nobody has used.
func (s *server) root() nacos.Root {
	s.roots++
	return nacos.Root{Namespace: fmt.Sprintf("test-%d", s.roots)}
}

// start starts a server with these settings added to its own.
func start(t *testing.T, settings map[string]string) *server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fetchTime)
	defer cancel()
	jars, err := fetch.Maven(ctx, "nacos", "server")
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
	port := freePort(t)
	s := &server{address: fmt.Sprintf("http://127.0.0.1:%d", port)}
	home := t.TempDir()
	all := map[string]string{
		"nacos.server.main.port": strconv.Itoa(port), "nacos.core.auth.system.type": "nacos",
		"nacos.core.auth.enabled": "false", "nacos.core.auth.admin.enabled": "false", "nacos.core.auth.console.enabled": "false",
		"db.pool.config.connectionTimeout":    "30000", // Milliseconds; the default is short for a busy machine.
		"nacos.core.auth.server.identity.key": "test", "nacos.core.auth.server.identity.value": "test",
		"nacos.core.auth.plugin.nacos.token.secret.key": "dGhpcyBpcyBhIGtleSBvZiB0ZXN0cyB0aGF0IGlzIGxvbmcgZW5vdWdo",
	}
	maps.Copy(all, settings)
	s.Process = servers.Start(t, servers.Spec{
		Name: "nacos", Path: java, Dir: home, Ready: s.ready,
		Args: []string{"-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dnacos.home=" + home, "-Dnacos.standalone=true",
			"-Dnacos.server.ip=127.0.0.1", "-Dserver.address=127.0.0.1",
			"-Dspring.config.additional-location=file:" + configure(t, all), "-cp", jars + "/*", main},
	})
	return s
}

// configure writes the settings into a directory.
func configure(t *testing.T, settings map[string]string) string {
	t.Helper()
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		_, _ = fmt.Fprintf(&text, "%s=%s\n", key, settings[key])
	}
	folder := t.TempDir() + "/"
	if err := os.WriteFile(folder+"application.properties", []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

// freePort is a free port; the ports that Nacos derives from it are free too.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := servers.FreePorts(t, 1)[0]
		if port > 3000 && port < 64000 && free(t, port+1000) && free(t, port+1001) && free(t, port-1000) {
			return port
		}
	}
	t.Fatal("no port has free neighbours")
	return 0
}

func free(t *testing.T, port int) bool {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf(":%d", port))
	return err == nil && listener.Close() == nil
}

// ready waits for the server, and disables its own health checks where a test does not
// want them: most addresses have no listener.
func (s *server) ready(ctx context.Context) error {
	if _, err := s.do(ctx, http.MethodGet, "/nacos/v3/admin/core/state/readiness", nil); err != nil {
		return err
	}
	_, err := s.do(ctx, http.MethodPut, "/nacos/v3/admin/ns/ops/switches",
		url.Values{"entry": {"healthCheckEnabled"}, "value": {strconv.FormatBool(s.checks)}})
	if err != nil && strings.Contains(err.Error(), "403") {
		return nil // It has users; such tests check no health.
	}
	return err
}

// do sends a test's own request, bypassing the connector. It returns the answer's data.
func (s *server) do(ctx context.Context, method, path string, form url.Values) (json.RawMessage, error) {
	target := s.address + path
	if len(form) > 0 {
		target += "?" + form.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, target, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s: %s", path, response.Status, data)
	}
	var said struct{ Data json.RawMessage }
	return said.Data, json.Unmarshal(data, &said)
}

func (s *server) must(t *testing.T, method, path string, form url.Values) {
	t.Helper()
	if _, err := s.do(try.Bounded(t), method, path, form); err != nil {
		t.Fatal(err)
	}
}

// foreign is an instance as other clients register it.
func foreign(root nacos.Root, service, id string, port int) url.Values {
	metadata, _ := json.Marshal(map[string]string{"usher-id": id, "usher-address": fmt.Sprintf("192.0.2.1:%d", port)})
	return url.Values{
		"namespaceId": {root.Namespace}, "serviceName": {service}, "ip": {"192.0.2.1"}, "port": {strconv.Itoa(port)},
		"weight": {"1"}, "ephemeral": {"false"}, "metadata": {string(metadata)},
	}
}

func (s *server) connect(t *testing.T, options nacos.Options) *nacos.Registry {
	t.Helper()
	options.Address = s.address
	r, err := nacos.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}
