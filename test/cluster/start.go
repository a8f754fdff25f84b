// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"k8s.io/client-go/rest"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
	"github.com/usher-dev/usher/test/servers/run"
)

// Start builds what is missing, starts a control plane and returns when it is usable:
// the API server is ready, the default namespace has its service account, and the
// controller manager and the scheduler are healthy. ctx bounds the build and the start,
// not the cluster's life; Stop ends that.
//
// Errors: *process.ExitError if a component ended, for instance because Options.Port is
// taken.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	// First what fails before a build that takes minutes.
	if err := claimDir(opts.Dir); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, err
	}
	binaries, err := build.Ensure(ctx, build.Options{})
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	c, err := startLocked(ctx, opts, layout{dir: dir}, binaries, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return c, nil
}

func startLocked(ctx context.Context, opts Options, l layout, binaries *build.Binaries, lock *flock.Flock) (*Cluster, error) {
	opts.Tell.Tell(progress.Event{Detail: "Starting Kubernetes " + binaries.Kubernetes + " on " + loopback + " in " + l.dir + "."})
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the start took longer than %s", startTimeout))
	defer cancel()
	if err := l.reset(); err != nil {
		return nil, err
	}
	c := &Cluster{
		opts: opts, layout: l, binaries: binaries, lock: lock,
		spawner: process.NewSpawner(), done: make(chan struct{}), running: map[string]*process.Process{},
	}
	err := c.start(ctx)
	if err == nil {
		return c, nil
	}
	for name := range c.PIDs() {
		err = errors.Join(err, c.end(name, (*process.Process).Kill))
	}
	c.spawner.Close()
	return nil, err
}

// start runs the components in the order of their dependencies.
func (c *Cluster) start(ctx context.Context) (err error) {
	free, err := run.FreePorts(ctx, 5)
	if err != nil {
		return err
	}
	c.ports = ports{etcd: free[0], etcdPeer: free[1], controllers: free[2], scheduler: free[3], api: free[4]}
	if c.opts.Port != 0 {
		c.ports.api = c.opts.Port
	}
	now := time.Now()
	if c.identity, err = newIdentity(c.layout, now); err != nil {
		return err
	}
	if err := c.identity.writeConfigs(c.layout, c.Server(), now); err != nil {
		return err
	}
	if c.client, err = rest.HTTPClientFor(c.RESTConfig()); err != nil {
		return err
	}
	// If a component ends while another one starts, the start fails.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-c.done:
			cancel(c.Err())
		case <-ctx.Done():
		}
	}()
	// Each stage starts its components at once and waits until all are ready. The API
	// server's clients start only when it is ready: a client that is refused once,
	// because RBAC is not there yet, would back off for longer than it gained.
	for _, stage := range [][]string{{build.Etcd}, {build.APIServer}, {build.ControllerManager, build.Scheduler}} {
		if err := c.startStage(ctx, stage...); err != nil {
			return err
		}
	}
	// Until then, no Pod can be created in the default namespace.
	return c.running[build.ControllerManager].WaitReady(ctx, func(ctx context.Context) error {
		return get(ctx, c.client, c.Server()+"/api/v1/namespaces/default/serviceaccounts/default")
	})
}

// startStage starts components and waits until they are healthy.
func (c *Cluster) startStage(ctx context.Context, names ...string) error {
	for _, name := range names {
		c.opts.Tell.Tell(progress.Event{Task: name, State: progress.Starting})
		if err := c.spawn(name); err != nil {
			return err
		}
	}
	for _, name := range names {
		_, health := c.component(name)
		err := c.running[name].WaitReady(ctx, func(ctx context.Context) error { return get(ctx, c.client, health) })
		if err != nil {
			c.opts.Tell.Tell(progress.Event{Task: name, State: progress.Failed})
			return err
		}
		c.opts.Tell.Tell(progress.Event{Task: name, State: progress.Done, Detail: "ready"})
	}
	return nil
}

// component returns the arguments of a component and the URL of its health.
func (c *Cluster) component(name string) (args []string, health string) {
	switch name {
	case build.Etcd:
		return etcdArgs(c.layout.path("etcd"), c.ports.etcd, c.ports.etcdPeer, nil), "http://" + hostPort(c.ports.etcd) + "/health"
	case build.APIServer:
		return apiServerArgs(c.layout, c.ports, c.opts.AuditLog, c.opts.ExtraArgs.APIServer), c.Server() + "/readyz"
	case build.ControllerManager:
		return controllerManagerArgs(c.layout, c.ports, c.opts.ExtraArgs.ControllerManager), "https://" + hostPort(c.ports.controllers) + "/healthz"
	default:
		return schedulerArgs(c.layout, c.ports), "https://" + hostPort(c.ports.scheduler) + "/readyz"
	}
}

// spawn starts one component and watches it.
func (c *Cluster) spawn(name string) error {
	args, _ := c.component(name)
	p, err := c.spawner.Start(process.Spec{
		Name: name, Path: c.binaries.Path(name), Args: args, Dir: c.layout.dir, Log: c.layout.log(name),
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.running[name] = p
	c.mu.Unlock()
	go func() {
		<-p.Done()
		if !p.Asked() {
			c.finish(p.ExitError())
		}
	}()
	return nil
}

const (
	// startTimeout bounds a start, without the build.
	startTimeout = 2 * time.Minute
	// probeTimeout bounds one health request to a component.
	probeTimeout = 2 * time.Second
)

// get returns nil if a URL answers 200.
func get(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// Readers of the audit log recognize our requests by this name.
	req.Header.Set("User-Agent", "usher-devcluster")
	// A kept-alive connection to a component that has ended would be tried first.
	req.Close = true
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 8<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, resp.Status, text)
	}
	return err
}
