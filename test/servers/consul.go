// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/registries/fetch"
)

const (
	kindConsul = "consul"
	// lookEvery is the minimum time between two reads of a Consul, since each read
	// returns the whole service. An entry that left and came back in between shows in
	// its index.
	lookEvery = 2 * time.Second
	// lookWait is how long Consul delays an answer without news.
	lookWait  = "10s"
	readyPoll = 50 * time.Millisecond
	// metricsKept is longer than any measurement.
	metricsKept = "24h"
)

// consul is a real Consul server of one member.
type consul struct {
	process *process.Process
	spawner *process.Spawner
	address string
	http    *http.Client
	version string
	every   time.Duration // between two looks

	mu    sync.Mutex
	nodes map[string]string // by UID
	looks int               // reads by Watch
}

func startConsul(ctx context.Context, where Where) (Server, error) {
	program, err := fetch.GoProgram(ctx, kindConsul, filepath.Join(where.Root, "test", "registries", "consul", "server"),
		"github.com/hashicorp/consul", "about ten minutes on two cores")
	if err != nil {
		return nil, err
	}
	ports, err := cluster.FreePorts(ctx, 4)
	if err != nil {
		return nil, err
	}
	settings, err := json.Marshal(map[string]any{
		"disable_update_check": true, "disable_host_node_id": true,
		"performance": map[string]any{"raft_multiplier": 1},
		"telemetry":   map[string]any{"prometheus_retention_time": metricsKept, "disable_hostname": true},
		// By default, Consul allows one address no more than 200 connections.
		"limits": map[string]any{"http_max_conns_per_client": 1000},
		"ports": map[string]any{"http": ports[0], "server": ports[1], "serf_lan": ports[2], "serf_wan": ports[3],
			"https": -1, "dns": -1, "grpc": -1},
	})
	if err != nil {
		return nil, err
	}
	c := &consul{
		spawner: process.NewSpawner(), address: fmt.Sprintf("http://127.0.0.1:%d", ports[0]), http: manyConns(),
		every: lookEvery, nodes: map[string]string{},
	}
	c.process, err = c.spawner.Start(process.Spec{
		Name: kindConsul, Path: program, Dir: where.Dir, Log: filepath.Join(where.Dir, "consul.log"),
		Args: []string{"agent", "-server", "-bootstrap-expect=1", "-node=server", "-bind=127.0.0.1", "-client=127.0.0.1",
			"-log-level=warn", "-data-dir=" + filepath.Join(where.Dir, "data"), "-hcl=" + string(settings)},
	})
	if err == nil {
		err = c.awaitReady(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// awaitReady waits until the server is the leader.
func (c *consul) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		var nodes []any
		_, err := c.ask(ctx, http.MethodGet, "/v1/catalog/nodes?consistent", nil, &nodes)
		if err == nil && len(nodes) > 0 {
			var self struct{ Config struct{ Version string } }
			_, err := c.ask(ctx, http.MethodGet, "/v1/agent/self", nil, &self)
			c.version = self.Config.Version
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("consul does not get ready: %w", cmp.Or(err, context.Cause(ctx)))
		case <-c.process.Done():
			return c.process.ExitError()
		case <-time.After(readyPoll):
		}
	}
}

func (c *consul) Name() string { return "Consul " + c.version }

func (c *consul) Spec() v1alpha1.RegistrySpec {
	return v1alpha1.RegistrySpec{Consul: &v1alpha1.ConsulRegistry{Address: c.address}}
}

func (c *consul) PID() int { return c.process.PID() }

// Put writes a node, a service and a check in one request, like Usher's entries.
func (c *consul) Put(ctx context.Context, name string) error {
	_, err := c.ask(ctx, http.MethodPut, "/v1/catalog/register", map[string]any{
		"Node": name, "Address": "127.0.0.1",
		"Service": map[string]any{"ID": name, "Service": "raw", "Address": "127.0.0.1", "Port": 8080},
		"Check":   map[string]any{"Node": name, "CheckID": "raw", "Name": "raw", "Status": "passing", "ServiceID": name},
	}, nil)
	return err
}

func (c *consul) Remove(ctx context.Context, name string) error {
	_, err := c.ask(ctx, http.MethodPut, "/v1/catalog/deregister", map[string]any{"Node": name}, nil)
	return err
}

func (c *consul) Evict(ctx context.Context, uid string) error {
	c.mu.Lock()
	node := c.nodes[uid]
	c.mu.Unlock()
	if node == "" {
		return fmt.Errorf("evict the entry of Pod %s: %w", uid, errNotWatched)
	}
	return c.Remove(ctx, node)
}

// Calls counts the calls to Consul's HTTP API, by method and path.
func (c *consul) Calls(ctx context.Context) (Calls, error) {
	text, err := get(ctx, c.http, c.address+"/v1/agent/metrics?format=prometheus")
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	looks := c.looks
	c.mu.Unlock()
	return consulCalls(text, looks)
}

// consulCalls parses the calls from Consul's metrics, without the watch's reads.
func consulCalls(text string, looks int) (Calls, error) {
	metrics, err := parseMetrics(text, "consul_api_http_count")
	if err != nil {
		return nil, err
	}
	calls := Calls{}
	for _, m := range metrics {
		switch path := m.label("path"); path {
		case "v1_agent_metrics", "v1_agent_self", "v1_catalog_nodes":
		default:
			calls[m.label("method")+" "+path] += m.value
		}
	}
	calls[lookCall] -= looks
	return calls, nil
}

// lookCall is the name of the watch's reads among the calls.
const lookCall = http.MethodGet + " v1_health_service_"

// instance is the part of Consul's answer that is used.
type instance struct {
	Node    struct{ Node string }
	Service struct {
		Meta        map[string]string
		Weights     struct{ Passing int }
		CreateIndex uint64
	}
}

func (c *consul) Watch(ctx context.Context, tell func(Sighting)) error {
	known, index, since := choice{}, "", time.Now()
	for {
		began := time.Now()
		later, next, err := c.look(ctx, index)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch Consul: %w", err)
		}
		known.changes(later, since, tell)
		known, index, since = later, next, began
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(began.Add(c.every))):
		}
	}
}

// look waits until the instances that callers get differ from those of the index, and
// returns them.
func (c *consul) look(ctx context.Context, index string) (choice, string, error) {
	var instances []instance
	header, err := c.ask(ctx, http.MethodGet, "/v1/health/service/"+Service+"?passing&wait="+lookWait+"&index="+url.QueryEscape(index), nil, &instances)
	if err != nil {
		return nil, "", err
	}
	there := choice{}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks++
	for _, i := range instances {
		if i.Service.Weights.Passing < 1 {
			continue
		}
		uid := i.Service.Meta["usher-uid"]
		there[i.Node.Node] = chosen{uid: uid, life: i.Service.CreateIndex}
		c.nodes[uid] = i.Node.Node
	}
	return there, header.Get("X-Consul-Index"), nil
}

// ask is one request.
func (c *consul) ask(ctx context.Context, method, path string, question, into any) (http.Header, error) {
	body := io.Reader(http.NoBody)
	if question != nil {
		data, err := json.Marshal(question)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.address+path, body)
	if err != nil {
		return nil, err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }() // It has been read.
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s: %.200s", path, answer.Status, data)
	}
	if into == nil {
		return answer.Header, nil
	}
	return answer.Header, json.Unmarshal(data, into)
}

func (c *consul) Close() error {
	var err error
	if c.process != nil {
		err = c.process.Kill()
	}
	c.spawner.Close()
	return err
}
