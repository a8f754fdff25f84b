// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/filelock"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
)

// How long a component may take to end before it is killed. As long as the machine
// runs, all of them keep their data intact on SIGKILL.
const (
	stopGrace = 5 * time.Second
	// The API server would wait a minute for open watches.
	apiServerStopGrace = 2 * time.Second
)

// Cluster is a running control plane, created by Start. Its methods are safe for
// concurrent use.
type Cluster struct {
	opts     Options
	layout   layout
	binaries *build.Binaries
	identity *identity
	prober   *Prober
	lock     *filelock.Lock
	ports    ports
	done     chan struct{}

	// life serialises starting and ending components.
	life    sync.Mutex
	spawner *process.Spawner

	mu      sync.Mutex
	running []*process.Process
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

// Dir is the cluster's directory.
func (c *Cluster) Dir() string { return c.layout.dir }

// Server is the API server's URL.
func (c *Cluster) Server() string { return "https://" + hostPort(c.ports.api) }

// Version is the version of Kubernetes, for instance "v1.36.3".
func (c *Cluster) Version() string { return c.binaries.Kubernetes }

// CA is the cluster's certificate authority, in PEM.
func (c *Cluster) CA() []byte { return c.identity.authority.PEM() }

// RESTConfig returns a new administrator client configuration without a rate limit (QPS
// -1).
func (c *Cluster) RESTConfig() *rest.Config {
	return restConfig(c.Server(), c.CA(), c.identity.admin)
}

// Kubeconfig is the path of the administrator's kubeconfig, for kubectl.
func (c *Cluster) Kubeconfig() string { return c.layout.adminKubeconfig() }

// UserKubeconfig creates a kubeconfig with a client certificate for a user, who has
// only the rights that RBAC grants to the name and the groups. It returns the file's
// path.
func (c *Cluster) UserKubeconfig(user string, groups ...string) (string, error) {
	return IssueKubeconfig(c.layout.dir, c.Server(), user, time.Now(), groups...)
}

// Components describes the components that run now, in start order.
func (c *Cluster) Components() ([]Component, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []Component{}
	for _, name := range build.All() {
		p := c.find(name)
		if p == nil {
			continue
		}
		id, err := process.Table{}.Identify(p.PID())
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just ended; Done reports that
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name(), err)
		}
		list = append(list, Component{
			Name: p.Name(), Process: id, Port: c.port(p.Name()), Started: p.Started(), Log: p.Log(),
		})
	}
	return list, nil
}

// Logs lists the paths of the components' logs, in start order.
func (c *Cluster) Logs() []string {
	list := []string{}
	for _, name := range build.All() {
		list = append(list, c.layout.log(name))
	}
	return list
}

func (c *Cluster) port(name string) int {
	switch name {
	case build.Etcd:
		return c.ports.etcd
	case build.APIServer:
		return c.ports.api
	case build.ControllerManager:
		return c.ports.controllers
	default:
		return c.ports.scheduler
	}
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
		p := c.process(name)
		if p == nil {
			continue
		}
		c.opts.Tell.Tell(progress.Event{Task: p.Name(), State: progress.Stopping})
		errs = append(errs, p.Stop(ctx, graceOf(p.Name())))
		c.opts.Tell.Tell(progress.Event{Task: p.Name(), State: progress.Done, Detail: "stopped"})
		c.forget(p)
	}
	c.spawner.Close()
	c.finish(nil)
	return errors.Join(append(errs, c.lock.Release())...)
}

func graceOf(name string) time.Duration {
	if name == build.APIServer {
		return apiServerStopGrace
	}
	return stopGrace
}

// finish closes Done once; the first error wins.
func (c *Cluster) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
		return
	default:
	}
	c.err = err
	close(c.done)
}

// spawn starts one component and watches it.
func (c *Cluster) spawn(name string, args []string) (*process.Process, error) {
	p, err := c.spawner.Start(process.Spec{
		Name: name, Path: c.binaries.Path(name), Args: args, Dir: c.layout.dir, Log: c.layout.log(name),
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.running = append(c.running, p)
	c.mu.Unlock()
	go func() {
		<-p.Done()
		if !p.Asked() {
			c.finish(p.ExitError())
		}
	}()
	return p, nil
}

// forget removes an ended process from the running ones.
func (c *Cluster) forget(gone *process.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = slices.DeleteFunc(c.running, func(p *process.Process) bool { return p == gone })
}

// process finds a running component; nil if it does not run.
func (c *Cluster) process(name string) *process.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.find(name)
}

// find is process for callers that hold mu.
func (c *Cluster) find(name string) *process.Process {
	for _, p := range c.running {
		if p.Name() == name {
			return p
		}
	}
	return nil
}
