// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"

	"github.com/usher-dev/usher/test/cluster/build"
)

// ErrStopped is returned by methods that need a running cluster.
var ErrStopped = errors.New("the cluster was stopped")

// StopAPIServer ends only the API server, as a failure that clients must survive:
// SIGTERM, then SIGKILL if it drains for longer than a few seconds. It is not an error
// if the API server does not run. Done is not closed.
func (c *Cluster) StopAPIServer(ctx context.Context) error {
	c.life.Lock()
	defer c.life.Unlock()
	return c.stopAPIServer(ctx)
}

// StartAPIServer restarts the API server on the same port and data, and returns when it
// is ready. It is not an error if the API server already runs.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	c.life.Lock()
	defer c.life.Unlock()
	return c.startAPIServer(ctx)
}

// RestartAPIServer combines StopAPIServer and StartAPIServer.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	c.life.Lock()
	defer c.life.Unlock()
	if err := c.stopAPIServer(ctx); err != nil {
		return err
	}
	return c.startAPIServer(ctx)
}

// KillAPIServer ends the API server with SIGKILL: requests in flight get no answer.
func (c *Cluster) KillAPIServer() error {
	c.life.Lock()
	defer c.life.Unlock()
	p := c.process(build.APIServer)
	if p == nil {
		return nil
	}
	err := p.Kill()
	c.forget(p)
	return err
}

func (c *Cluster) stopAPIServer(ctx context.Context) error {
	p := c.process(build.APIServer)
	if p == nil {
		return nil
	}
	err := p.Stop(ctx, apiServerStopGrace)
	c.forget(p)
	return err
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	c.mu.Lock()
	stopped := c.stopped
	c.mu.Unlock()
	if stopped {
		return ErrStopped
	}
	if c.process(build.APIServer) != nil {
		return nil
	}
	p, err := c.launch(build.APIServer)
	if err != nil {
		return err
	}
	if err := c.ready(ctx, p); err != nil {
		return explainPort(err, c.ports.api)
	}
	return nil
}
