// SPDX-License-Identifier: Apache-2.0

package consul_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry/consul"
	"github.com/usher-dev/usher/test/registries/fetch"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/registries/internal/try"
)

const (
	// buildTime bounds a first build of Consul.
	buildTime  = 30 * time.Minute
	datacenter = "east"
)

// server is a single-member Consul.
type server struct {
	*servers.Process
	address string
	secure  string // TLS address, if the settings name a certificate.
	token   string // For tests; may do everything.
	// file is the configuration, read when the server starts.
	file   string
	config map[string]any
}

// start starts a server with these settings added to its own.
func start(t *testing.T, settings map[string]any) *server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), buildTime)
	defer cancel()
	program, err := fetch.GoProgram(ctx, "consul", "server", "github.com/hashicorp/consul", "about ten minutes on two cores")
	if err != nil {
		t.Fatal(err)
	}
	ports := servers.FreePorts(t, 5)
	https := -1
	if settings["cert_file"] != nil {
		https = ports[4]
	}
	s := &server{address: fmt.Sprintf("http://127.0.0.1:%d", ports[0]), secure: fmt.Sprintf("https://127.0.0.1:%d", https)}
	s.file = filepath.Join(t.TempDir(), "config.json")
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
	if acl, ok := settings["acl"].(map[string]any); ok {
		s.token = acl["tokens"].(map[string]any)["initial_management"].(string)
	}
}

// ready returns nil once the server is the leader and has registered itself.
func (s *server) ready(ctx context.Context) error {
	var nodes []any
	if err := s.do(ctx, http.MethodGet, "/v1/catalog/nodes?consistent", nil, &nodes); err != nil {
		return err
	}
	if len(nodes) == 0 {
		return errors.New("it has no node yet")
	}
	return nil
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
	request.Header.Set("X-Consul-Token", s.token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s: %s", path, response.Status, data)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(data, into)
}

func (s *server) put(t *testing.T, path string, question any) {
	t.Helper()
	if err := s.do(try.Bounded(t), http.MethodPut, path, question, nil); err != nil {
		t.Fatal(err)
	}
}

// nodes are the names in the catalog, except the server's own.
func (s *server) nodes(t *testing.T) []string {
	t.Helper()
	var listed []struct{ Node string }
	if err := s.do(try.Bounded(t), http.MethodGet, "/v1/catalog/nodes?consistent", nil, &listed); err != nil {
		t.Fatal(err)
	}
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
		options.Address = s.address
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

func token(value string) map[string][]byte { return map[string][]byte{consul.KeyToken: []byte(value)} }

// passing are the addresses that a caller of the service gets.
func (s *server) passing(ctx context.Context, service, index string) (addresses []string, next string, err error) {
	path := "/v1/health/service/" + service + "?passing&wait=10s&index=" + url.QueryEscape(index)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.address+path, http.NoBody)
	if err != nil {
		return nil, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = response.Body.Close() }()
	var listed []struct {
		Service struct {
			Address string
			Port    int
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&listed); err != nil {
		return nil, "", err
	}
	for _, i := range listed {
		addresses = append(addresses, fmt.Sprintf("%s:%d", i.Service.Address, i.Service.Port))
	}
	return addresses, response.Header.Get("X-Consul-Index"), nil
}
