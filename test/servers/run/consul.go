// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/usher-dev/usher/test/fetch"
)

// Consul is a real Consul server of one member.
type Consul struct {
	*Process
	HTTP
	// Secure is the address with TLS, if the settings name a certificate.
	Secure string

	file     string
	settings map[string]any
}

// StartConsul starts a server with these settings added to its own. module is the
// directory whose go.mod pins the version. It is built the first time.
func StartConsul(ctx context.Context, module, dir string, settings map[string]any) (*Consul, error) {
	program, err := fetch.GoProgram(ctx, "consul", module, "github.com/hashicorp/consul", "about ten minutes on two cores")
	if err != nil {
		return nil, err
	}
	ports, err := FreePorts(ctx, 5)
	if err != nil {
		return nil, err
	}
	https := -1
	if settings["cert_file"] != nil {
		https = ports[4]
	}
	c := &Consul{
		HTTP:   HTTP{Address: fmt.Sprintf("http://127.0.0.1:%d", ports[0])},
		Secure: fmt.Sprintf("https://127.0.0.1:%d", https), file: filepath.Join(dir, "config.json"),
		settings: map[string]any{
			"disable_update_check": true,
			"disable_host_node_id": true,
			"log_level":            "warn",
			"performance":          map[string]any{"raft_multiplier": 1},
			"ports": map[string]any{
				"http": ports[0], "https": https, "server": ports[1], "serf_lan": ports[2], "serf_wan": ports[3],
				"dns": -1, "grpc": -1,
			},
		},
	}
	if err := c.Set(settings); err != nil {
		return nil, err
	}
	c.Process, err = Start(ctx, Spec{
		Name: "consul", Path: program, Log: filepath.Join(dir, "consul.log"),
		Ready: func(ctx context.Context) error { return ConsulReady(ctx, c.HTTP) },
		Args: []string{"agent", "-server", "-bootstrap-expect=1", "-node=server", "-bind=127.0.0.1", "-client=127.0.0.1",
			"-data-dir=" + filepath.Join(dir, "data"), "-config-file=" + c.file},
	})
	return c, err
}

// Set adds settings that apply at the server's next start.
func (c *Consul) Set(settings map[string]any) error {
	maps.Copy(c.settings, settings)
	if acl, ok := settings["acl"].(map[string]any); ok {
		token := acl["tokens"].(map[string]any)["initial_management"].(string)
		c.Header = http.Header{"X-Consul-Token": {token}}
	}
	data, err := json.Marshal(c.settings)
	if err != nil {
		return err
	}
	return os.WriteFile(c.file, data, 0o600)
}

// Instance is an instance of a service in Consul.
type Instance struct {
	Node    struct{ Node string }
	Service struct {
		ID, Address string
		Port        int
		Meta        map[string]string
		Weights     struct{ Passing int }
		CreateIndex uint64
	}
}

// HostPort returns the instance's address.
func (i Instance) HostPort() string {
	return net.JoinHostPort(i.Service.Address, strconv.Itoa(i.Service.Port))
}

// Passing lists the instances of a service that pass their checks, as callers without an agent
// query a Consul. It waits some seconds for a list other than that of the index, and returns
// the list's own.
func Passing(ctx context.Context, consul HTTP, service, index string) (listed []Instance, next string, err error) {
	header, err := consul.Do(ctx, http.MethodGet, fmt.Sprintf("/v1/health/service/%s?passing&wait=%s&index=%s",
		url.PathEscape(service), readWait, url.QueryEscape(index)), nil, &listed)
	return listed, header.Get("X-Consul-Index"), err
}

// readWait is how long Consul may delay an answer without a change.
const readWait = "10s"

// ConsulReady returns nil once a server is the leader and has registered itself.
func ConsulReady(ctx context.Context, consul HTTP) error {
	var nodes []any
	_, err := consul.Do(ctx, http.MethodGet, "/v1/catalog/nodes?consistent", nil, &nodes)
	if err == nil && len(nodes) == 0 {
		err = errors.New("it has no node yet")
	}
	return err
}
