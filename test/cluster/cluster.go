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

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
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
	values   map[string]string // of the components' flags
	client   *http.Client      // the administrator's

	// well ends when a component ends unexpectedly, or when the cluster is stopped.
	well context.Context
	fail context.CancelCauseFunc

	// life serialises starting and ending components.
	life    sync.Mutex
	running sync.Map // *process.Process by the name of the component
}

// Done is closed when a component ends unexpectedly or the cluster is stopped; Err
// distinguishes the two.
func (c *Cluster) Done() <-chan struct{} { return c.well.Done() }

// Err is nil while all is well and after a Stop. If a component has ended on its own,
// Err is that component's *process.ExitError, with the end of its log.
func (c *Cluster) Err() error {
	if cause := context.Cause(c.well); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// Server returns the API server's URL.
func (c *Cluster) Server() string { return Fill("https://127.0.0.1:$API", c.values) }

// Version returns the version of Kubernetes, for instance "v1.37.2".
func (c *Cluster) Version() string { return c.binaries.Kubernetes }

// PIDs returns the IDs of the components' processes, by the names of their binaries.
func (c *Cluster) PIDs() map[string]int {
	pids := map[string]int{}
	for name, p := range c.running.Range {
		pids[name.(string)] = p.(*process.Process).PID()
	}
	return pids
}

// Logs lists the paths of the components' logs, in start order.
func (c *Cluster) Logs() []string { return list.Map(build.All(), c.layout.log) }

// Stop ends all components in reverse order, each with SIGTERM and then, after a few
// seconds or when ctx ends, with SIGKILL. When it returns, no process is left; the
// files stay. Stopping twice is not an error.
func (c *Cluster) Stop(ctx context.Context) error {
	c.life.Lock()
	defer c.life.Unlock()
	errs := []error{}
	for _, name := range slices.Backward(build.All()) {
		errs = append(errs, c.end(name, func(p *process.Process) error { return p.Stop(ctx, stopGrace) }))
	}
	c.fail(nil)
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
	if c.process(build.APIServer) != nil {
		return nil
	}
	return c.startComponent(ctx, build.APIServer)
}

// process returns the process of a component; nil if it does not run.
func (c *Cluster) process(name string) *process.Process {
	running, _ := c.running.Load(name)
	p, _ := running.(*process.Process)
	return p
}

// end ends a component if it runs.
func (c *Cluster) end(name string, how func(*process.Process) error) error {
	if p, runs := c.running.LoadAndDelete(name); runs {
		return how(p.(*process.Process))
	}
	return nil
}
