// SPDX-License-Identifier: Apache-2.0

package consul_test

import (
	"context"
	"maps"
	"net/http"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry/consul"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

const datacenter = "east"

// server is a single-member Consul.
type server struct{ *run.Consul }

// start starts a server with these settings added to its own.
func start(t *testing.T, settings map[string]any) *server {
	t.Helper()
	all := map[string]any{"datacenter": datacenter}
	maps.Copy(all, settings)
	var s server
	servers.Fetch(t, func(ctx context.Context) (_ string, err error) {
		s.Consul, err = run.StartConsul(ctx, "server", t.TempDir(), all)
		return "", err
	})
	servers.Close(t, s.Process)
	return &s
}

func (s *server) put(t *testing.T, path string, question any) {
	t.Helper()
	servers.Must(t, s.HTTP, http.MethodPut, path, question, nil)
}

// nodes are the names in the catalog, except the server's own.
func (s *server) nodes(t *testing.T) []string {
	t.Helper()
	var listed []struct{ Node string }
	servers.Must(t, s.HTTP, http.MethodGet, "/v1/catalog/nodes?consistent", nil, &listed)
	var names []string
	for _, n := range listed {
		if n.Node != "server" {
			names = append(names, n.Node)
		}
	}
	return names
}

// empty removes everything that tests have written.
func (s *server) empty(t *testing.T) {
	t.Helper()
	for _, name := range s.nodes(t) {
		s.put(t, "/v1/catalog/deregister", map[string]any{"Node": name})
	}
}

func (s *server) connect(t *testing.T, options consul.Options) *consul.Registry {
	t.Helper()
	if options.Address == "" {
		options.Address = s.Address
	}
	return registrytest.Connect(t, consul.New, options)
}

// catalog is a service on a node, as other clients register it.
func catalog(node, service, id, status string) map[string]any {
	return map[string]any{
		"Node": node, "Address": "192.0.2.1",
		"Service": map[string]any{"ID": id, "Service": service, "Address": "192.0.2.1", "Port": 1},
		"Check": map[string]any{"Node": node, "CheckID": "theirs", "Name": "theirs", "Status": status,
			"ServiceID": id, "ServiceName": service},
	}
}

// passing are the addresses that a caller of the service gets.
func (s *server) passing(ctx context.Context, service, index string) (addresses []string, next string, err error) {
	listed, next, err := run.Passing(ctx, s.HTTP, service, index)
	for _, i := range listed {
		addresses = append(addresses, i.HostPort())
	}
	return addresses, next, err
}
