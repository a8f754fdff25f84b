// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry/nacos"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

const instancePath = "/nacos/v3/admin/ns/instance"

// server is a single-member Nacos.
type server struct {
	*run.Process
	run.HTTP
	checks bool // Whether it checks instances' ports itself.
	roots  int
}

// start starts a server with these settings added to its own.
func start(t *testing.T, settings map[string]string) *server {
	t.Helper()
	port := freePort(t)
	s := &server{HTTP: run.HTTP{Address: fmt.Sprintf("http://127.0.0.1:%d", port)}}
	home := t.TempDir()
	all := map[string]string{
		"nacos.server.main.port": strconv.Itoa(port), "nacos.core.auth.system.type": "nacos",
		"nacos.core.auth.enabled": "false", "nacos.core.auth.admin.enabled": "false", "nacos.core.auth.console.enabled": "false",
		"db.pool.config.connectionTimeout":    "30000", // Milliseconds; the default is short for a busy machine.
		"nacos.core.auth.server.identity.key": "test", "nacos.core.auth.server.identity.value": "test",
		"nacos.core.auth.plugin.nacos.token.secret.key": "dGhpcyBpcyBhIGtleSBvZiB0ZXN0cyB0aGF0IGlzIGxvbmcgZW5vdWdo",
	}
	maps.Copy(all, settings)
	s.Process = servers.Start(t, run.Spec{
		Name: "nacos", Path: "java", Dir: home, Ready: s.ready,
		Args: append([]string{"-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dnacos.home=" + home, "-Dnacos.standalone=true",
			"-Dnacos.server.ip=127.0.0.1", "-Dserver.address=127.0.0.1",
			"-Dspring.config.additional-location=file:" + configure(t, all)}, servers.Java(t, "nacos", "server")...),
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
	registrytest.NoError(t, os.WriteFile(folder+"application.properties", []byte(text.String()), 0o600))
	return folder
}

// freePort is a free port; the ports that Nacos derives from it are free too. They are
// below those that clients use, which come and go.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10_000 + rand.IntN(20_000)
		if free(t, port) && free(t, port+1000) && free(t, port+1001) && free(t, port-1000) {
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
	if _, err := s.Do(ctx, http.MethodGet, "/nacos/v3/admin/core/state/readiness", nil, nil); err != nil {
		return err
	}
	_, err := s.Do(ctx, http.MethodPut, "/nacos/v3/admin/ns/ops/switches?"+
		url.Values{"entry": {"healthCheckEnabled"}, "value": {strconv.FormatBool(s.checks)}}.Encode(), nil, nil)
	if err != nil && strings.Contains(err.Error(), "403") {
		return nil // It has users; such tests check no health.
	}
	return err
}

// write sends a change of an instance, bypassing the connector.
func (s *server) write(t *testing.T, method string, form url.Values) {
	t.Helper()
	servers.Must(t, s.HTTP, method, instancePath+"?"+form.Encode(), nil, nil)
}

// foreign is an instance as other clients register it.
func foreign(root nacos.Root, service, id string, port int) url.Values {
	metadata, _ := json.Marshal(map[string]string{"usher-id": id, "usher-address": fmt.Sprintf("192.0.2.1:%d", port)})
	return url.Values{
		"namespaceId": {root.Namespace}, "serviceName": {service}, "ip": {"192.0.2.1"}, "port": {strconv.Itoa(port)},
		"weight": {"1"}, "ephemeral": {"false"}, "metadata": {string(metadata)},
	}
}

// connect returns a connector to a namespace that nobody has used.
func (s *server) connect(t *testing.T) (nacos.Root, *nacos.Registry) {
	t.Helper()
	s.roots++
	root := nacos.Root{Namespace: fmt.Sprintf("test-%d", s.roots)}
	return root, s.connectWith(t, nacos.Options{Root: root})
}

func (s *server) connectWith(t *testing.T, options nacos.Options) *nacos.Registry {
	t.Helper()
	options.Address = s.Address
	return registrytest.Connect(t, nacos.New, options)
}
