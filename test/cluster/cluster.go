// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
)

// stopGrace is how long a component may take to end before it is killed. As long as the
// machine runs, all of them keep their data intact on SIGKILL.
const stopGrace = 2 * time.Second

// Cluster is a running control plane, created by Start. Its methods are safe for
// concurrent use.
type Cluster struct {
	opts     Options
	layout   layout
	binaries *build.Binaries
	identity *identity
	lock     *flock.Flock
	ports    ports
	client   *http.Client // the administrator's
	done     chan struct{}

	// life serialises starting and ending components.
	life    sync.Mutex
	spawner *process.Spawner

	mu      sync.Mutex
	running map[string]*process.Process
	err     error
	stopped bool
}

// Done is closed when a component ends unexpectedly or the cluster is stopped; Err
// distinguishes the two.
func (c *Cluster) Done() <-chan struct{} { return c.done }

// Err is nil while all is well and after a Stop. If a component has ended on its own,
// Err is that component's *process.ExitError, with the end of its log.
func (c *Cluster) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Server is the API server's URL.
func (c *Cluster) Server() string { return "https://" + hostPort(c.ports.api) }

// Version is the version of Kubernetes, for instance "v1.36.3".
func (c *Cluster) Version() string { return c.binaries.Kubernetes }

// PIDs are the IDs of the components' processes, by the names of their binaries.
func (c *Cluster) PIDs() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	pids := map[string]int{}
	for name, p := range c.running {
		pids[name] = p.PID()
	}
	return pids
}

// Logs lists the paths of the components' logs, in start order.
func (c *Cluster) Logs() []string {
	list := []string{}
	for _, name := range build.All() {
		list = append(list, c.layout.log(name))
	}
	return list
}

// Stop ends all components in reverse order, each with SIGTERM and then, after a few
// seconds or when ctx ends, with SIGKILL. When it returns, no process is left; the
// files stay. Stopping twice is not an error.
func (c *Cluster) Stop(ctx context.Context) error {
	c.life.Lock()
	defer c.life.Unlock()
	c.mu.Lock()
	already := c.stopped
	c.stopped = true
	c.mu.Unlock()
	if already {
		return nil
	}
	errs := []error{}
	for _, name := range slices.Backward(build.All()) {
		c.opts.Tell.Tell(progress.Event{Task: name, State: progress.Stopping})
		errs = append(errs, c.end(name, func(p *process.Process) error { return p.Stop(ctx, stopGrace) }))
		c.opts.Tell.Tell(progress.Event{Task: name, State: progress.Done, Detail: "stopped"})
	}
	c.spawner.Close()
	c.finish(nil)
	return errors.Join(append(errs, c.lock.Close())...)
}

// KillAPIServer ends only the API server, with SIGKILL: requests in flight get no answer,
// and clients must survive it. Done is not closed. It is not an error if the API server
// does not run.
func (c *Cluster) KillAPIServer() error {
	c.life.Lock()
	defer c.life.Unlock()
	return c.end(build.APIServer, (*process.Process).Kill)
}

// StartAPIServer restarts the API server on the same port and data, and returns when it
// is ready. It is not an error if the API server already runs.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	c.life.Lock()
	defer c.life.Unlock()
	c.mu.Lock()
	running := c.running[build.APIServer] != nil
	c.mu.Unlock()
	if running {
		return nil
	}
	return c.startStage(ctx, build.APIServer)
}

// end ends a component if it runs.
func (c *Cluster) end(name string, how func(*process.Process) error) error {
	c.mu.Lock()
	p := c.running[name]
	delete(c.running, name)
	c.mu.Unlock()
	if p == nil {
		return nil
	}
	return how(p)
}

// finish closes Done once; the first error wins.
func (c *Cluster) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
	default:
		c.err = err
		close(c.done)
	}
}
