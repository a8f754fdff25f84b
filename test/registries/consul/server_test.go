// SPDX-License-Identifier: Apache-2.0

package consul_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry/consul"
	"github.com/usher-dev/usher/test/registries/fetch"
	"github.com/usher-dev/usher/test/registries/internal/servers"
)

const datacenter = "east"

// server is a single-member Consul.
type server struct {
	*servers.Process
	servers.HTTP
	secure string // The TLS address, if the settings name a certificate.
	// file is the configuration, read when the server starts.
	file   string
	config map[string]any
}

// start starts a server with these settings added to its own.
func start(t *testing.T, settings map[string]any) *server {
	t.Helper()
	program := servers.Fetch(t, func(ctx context.Context) (string, error) {
		return fetch.GoProgram(ctx, "consul", "server", "github.com/hashicorp/consul", "about ten minutes on two cores")
	})
	ports := servers.FreePorts(t, 5)
	https := -1
	if settings["cert_file"] != nil {
		https = ports[4]
	}
	s := &server{
		HTTP:   servers.HTTP{Address: fmt.Sprintf("http://127.0.0.1:%d", ports[0])},
		secure: fmt.Sprintf("https://127.0.0.1:%d", https), file: filepath.Join(t.TempDir(), "config.json"),
	}
	s.config = map[string]any{
		"disable_update_check": true,
		"disable_host_node_id": true,
		"performance":          map[string]any{"raft_multiplier": 1},
		"ports": map[string]any{
			"http": ports[0], "https": https, "server": ports[1], "serf_lan": ports[2], "serf_wan": ports[3],
			"dns": -1, "grpc": -1,
		},
	}
	s.set(t, settings)
	s.Process = servers.Start(t, servers.Spec{
		Name: "consul", Path: program, Ready: s.ready,
		Args: []string{"agent", "-server", "-bootstrap-expect=1", "-node=server", "-datacenter=" + datacenter,
			"-bind=127.0.0.1", "-client=127.0.0.1", "-data-dir=" + t.TempDir(), "-config-file=" + s.file},
	})
	return s
}

// set adds settings that apply at the server's next start.
func (s *server) set(t *testing.T, settings map[string]any) {
	t.Helper()
	maps.Copy(s.config, settings)
	data, err := json.Marshal(s.config)
	if err == nil {
		err = os.WriteFile(s.file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if settings["acl"] != nil {
		s.Header = http.Header{"X-Consul-Token": {management}}
	}
}

// ready returns nil once the server is the leader and has registered itself.
func (s *server) ready(ctx context.Context) error {
	var nodes []any
	if _, err := s.Do(ctx, http.MethodGet, "/v1/catalog/nodes?consistent", nil, &nodes); err != nil {
		return err
	}
	if len(nodes) == 0 {
		return errors.New("it has no node yet")
	}
	return nil
}

func (s *server) put(t *testing.T, path string, question any) {
	t.Helper()
	s.Must(t, http.MethodPut, path, question, nil)
}

// nodes are the names in the catalog, except the server's own.
func (s *server) nodes(t *testing.T) []string {
	t.Helper()
	var listed []struct{ Node string }
	s.Must(t, http.MethodGet, "/v1/catalog/nodes?consistent", nil, &listed)
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
	r, err := consul.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
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
	var listed []struct {
		Service struct {
			Address string
			Port    int
		}
	}
	header, err := s.Do(ctx, http.MethodGet, "/v1/health/service/"+service+"?passing&wait=10s&index="+url.QueryEscape(index), nil, &listed)
	if err != nil {
		return nil, "", err
	}
	for _, i := range listed {
		addresses = append(addresses, fmt.Sprintf("%s:%d", i.Service.Address, i.Service.Port))
	}
	return addresses, header.Get("X-Consul-Index"), nil
}
