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
	"golang.org/x/sync/errgroup"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
)

// stopGrace is how long a component may take to end before it is killed. As long as the
// machine runs, all of them keep their data intact on SIGKILL.
const stopGrace = 2 * time.Second

// drainGrace is how long an API server may take to answer what it has begun.
const drainGrace = 30 * time.Second

// Cluster is a running control plane, created by Start. Its methods are safe for
// concurrent use.
type Cluster struct {
	opts     Options
	layout   layout
	binaries *build.Binaries
	identity *identity
	lock     *flock.Flock
	values   map[string]string // of the components' flags
	parts    []part            // in start order
	server   string            // host:port of the API server, or of the balancer before several
	client   *http.Client      // the administrator's
	ha       *highlyAvailable  // nil if there is one of each

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

// Server returns the URL of the API server, or of the balancer before several.
func (c *Cluster) Server() string { return "https://" + c.server }

// Version returns the version of Kubernetes, for instance "v1.37.2".
func (c *Cluster) Version() string { return c.binaries.Kubernetes }

// PIDs returns the IDs of the components' processes, by the names of their binaries, of several with a number:
// kube-apiserver-2.
func (c *Cluster) PIDs() map[string]int {
	pids := map[string]int{}
	for name, p := range c.running.Range {
		pids[name.(string)] = p.(*process.Process).PID()
	}
	return pids
}

// Logs lists the paths of the components' logs, in start order.
func (c *Cluster) Logs() []string {
	return list.Map(c.parts, func(p part) string { return c.layout.log(p.name) })
}

// Stop ends all components in reverse order, each with SIGTERM and then, after a few
// seconds or when ctx ends, with SIGKILL. When it returns, no process is left; the
// files stay. Stopping twice is not an error.
func (c *Cluster) Stop(ctx context.Context) error {
	c.life.Lock()
	defer c.life.Unlock()
	errs := []error{}
	for _, part := range slices.Backward(c.parts) {
		errs = append(errs, c.end(part.name, func(p *process.Process) error { return p.Stop(ctx, stopGrace) }))
	}
	errs = append(errs, c.ha.close())
	c.fail(nil)
	return errors.Join(append(errs, c.lock.Close())...)
}

// KillAPIServer ends only the API server, or all of them, with SIGKILL: requests in flight get no answer,
// and clients must survive it. Done is not closed. It is not an error if the API server
// does not run.
func (c *Cluster) KillAPIServer() error {
	return errors.Join(list.Map(c.APIServers(), c.Kill)...)
}

// StartAPIServer restarts the API server, or all of them, on the same port and data, and returns when it
// is ready. It is not an error if the API server already runs.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	var starting errgroup.Group
	for _, name := range c.APIServers() {
		starting.Go(func() error { return c.Restart(ctx, name) })
	}
	return starting.Wait()
}

// APIServers lists the names of the API servers.
func (c *Cluster) APIServers() []string { return c.names(build.APIServer) }

// Members lists the names of the members of etcd.
func (c *Cluster) Members() []string { return c.names(build.Etcd) }

// names lists the names of the parts that run a binary.
func (c *Cluster) names(binary string) []string {
	return list.Map(list.Only(c.parts, func(p part) bool { return p.binary == binary }), func(p part) string { return p.name })
}

// Kill ends an API server or a member of etcd with SIGKILL. Done is not closed. It is not an error if it does not
// run.
func (c *Cluster) Kill(name string) error {
	c.life.Lock()
	defer c.life.Unlock()
	return c.end(name, (*process.Process).Kill)
}

// Drain ends an API server or a member of etcd as a rollout of the control plane does: it gets SIGTERM, and
// drainGrace to end by itself. Done is not closed.
func (c *Cluster) Drain(ctx context.Context, name string) error {
	c.life.Lock()
	defer c.life.Unlock()
	return c.end(name, func(p *process.Process) error { return p.Stop(ctx, drainGrace) })
}

// Restart starts a part again that was killed or drained, on the same ports and data, and returns when it is
// ready. It is not an error if it runs.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	c.life.Lock()
	at := slices.IndexFunc(c.parts, func(p part) bool { return p.name == name })
	if c.process(name) != nil || at < 0 {
		c.life.Unlock()
		return nil
	}
	p, err := c.spawn(c.parts[at])
	c.life.Unlock()
	if err != nil {
		return err
	}
	return c.awaitPart(ctx, c.parts[at], p)
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
