// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/test/servers/run"
)

const (
	kindConsul = "consul"
	// readEvery is the minimum time between two reads of a Consul, since each read returns the whole
	// service. The index shows if an entry was removed and added again in between.
	readEvery = 2 * time.Second
	// metricsKept is longer than any measurement.
	metricsKept = "24h"
)

// consul is a real Consul server of one member.
type consul struct {
	*run.Consul
	version string
	every   time.Duration // between two reads

	nodes sync.Map     // by UID
	reads atomic.Int64 // by Watch
}

func startConsul(ctx context.Context, checkout, dir string) (Server, error) {
	server, err := run.StartConsul(ctx, filepath.Join(checkout, "test", "registries", "consul", "server"), dir, map[string]any{
		"telemetry": map[string]any{"prometheus_retention_time": metricsKept, "disable_hostname": true},
		// By default, Consul allows one address no more than 200 connections.
		"limits": map[string]any{"http_max_conns_per_client": 1000},
	})
	if err != nil {
		return nil, err
	}
	server.Client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}} // all workers keep their connections
	c := &consul{Consul: server, every: readEvery}
	var self struct{ Config struct{ Version string } }
	if _, err := c.Do(ctx, http.MethodGet, "/v1/agent/self", nil, &self); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.version = self.Config.Version
	return c, nil
}

func (c *consul) Name() string { return "Consul " + c.version }

func (c *consul) Spec() v1alpha1.RegistrySpec {
	return v1alpha1.RegistrySpec{Consul: &v1alpha1.ConsulRegistry{Address: c.Address}}
}

// Put writes a node, a service and a check in one request, like Usher's entries.
func (c *consul) Put(ctx context.Context, name string) error {
	_, err := c.Do(ctx, http.MethodPut, "/v1/catalog/register", map[string]any{
		"Node": name, "Address": "127.0.0.1",
		"Service": map[string]any{"ID": name, "Service": "raw", "Address": "127.0.0.1", "Port": 8080},
		"Check":   map[string]any{"Node": name, "CheckID": "raw", "Name": "raw", "Status": "passing", "ServiceID": name},
	}, nil)
	return err
}

func (c *consul) Remove(ctx context.Context, name string) error {
	_, err := c.Do(ctx, http.MethodPut, "/v1/catalog/deregister", map[string]any{"Node": name}, nil)
	return err
}

func (c *consul) Evict(ctx context.Context, uid string) error {
	node, watched := c.nodes.Load(uid)
	if !watched {
		return fmt.Errorf("evict the entry of Pod %s: %w", uid, errNotWatched)
	}
	return c.Remove(ctx, node.(string))
}

// Calls counts the calls to Consul's HTTP API, by method and path.
func (c *consul) Calls(ctx context.Context) (Calls, error) {
	families, err := c.Metrics(ctx, "/v1/agent/metrics?format=prometheus")
	if err != nil {
		return nil, err
	}
	calls := Calls{}
	for _, m := range families["consul_api_http"].GetMetric() {
		switch path := label(m, "path"); path {
		case "v1_agent_metrics", "v1_agent_self", "v1_catalog_nodes":
		default:
			calls[label(m, "method")+" "+path] += int(m.GetSummary().GetSampleCount())
		}
	}
	calls[readCall] -= int(c.reads.Load())
	return calls, nil
}

// readCall is the name of the watch's reads among the calls.
const readCall = http.MethodGet + " v1_health_service_"

func (c *consul) Watch(ctx context.Context, report func(Sighting)) error {
	known, index, since := choice{}, "", time.Now()
	for {
		began := time.Now()
		later, next, err := c.read(ctx, index)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch Consul: %w", err)
		}
		known.changes(later, since, report)
		known, index, since = later, next, began
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(began.Add(c.every))):
		}
	}
}

// read waits until the instances that callers get differ from those of the index, and
// returns them.
func (c *consul) read(ctx context.Context, index string) (choice, string, error) {
	instances, next, err := run.Passing(ctx, c.HTTP, Service, index)
	if err != nil {
		return nil, "", err
	}
	there := choice{}
	c.reads.Add(1)
	for _, i := range instances {
		if i.Service.Weights.Passing < 1 {
			continue
		}
		uid := i.Service.Meta["usher-uid"]
		there[i.Node.Node] = chosen{uid: uid, life: i.Service.CreateIndex}
		c.nodes.Store(uid, i.Node.Node)
	}
	return there, next, nil
}
