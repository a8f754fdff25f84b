// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/filelock"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
)

// startTries bounds how often a start is retried because another program took a port
// between its choice and its use.
const startTries = 3

// InUseError means that a cluster already runs in a directory.
type InUseError struct {
	// Dir is the directory.
	Dir string
	// Holder is the process that runs it.
	Holder string
}

// Error names the directory and the process.
func (e *InUseError) Error() string {
	return fmt.Sprintf("a cluster already runs in %s (%s): stop it first, or choose another folder", e.Dir, e.Holder)
}

// Start builds what is missing, starts a control plane and returns when it is usable:
// the API server is ready, the default namespace has its service account, and the
// controller manager and the scheduler are healthy. ctx bounds the build and the start,
// not the cluster's life; Stop ends that.
//
// Errors: *build.Error if the build failed, *PortInUseError if Options.Port is taken,
// *InUseError if a cluster already runs in Options.Dir, *process.ExitError if a
// component ended.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	// 1. Report a port that is taken before a build that takes minutes.
	if err := CheckPort(ctx, opts.Port); err != nil {
		return nil, err
	}
	// 2. The binaries.
	binaries, err := build.Ensure(ctx, build.Options{Tell: opts.Tell})
	if err != nil {
		return nil, err
	}
	// 3. The directory, for us alone.
	l := layout{dir: opts.Dir}
	lock, err := claimFolder(l)
	if err != nil {
		return nil, err
	}
	// 4. The processes.
	c, err := startProcesses(ctx, opts, l, binaries, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	return c, nil
}

func claimFolder(l layout) (*filelock.Lock, error) {
	if err := l.claim(); err != nil {
		return nil, err
	}
	lock, err := filelock.Try(l.path("lock"), fmt.Sprintf("process %d", os.Getpid()))
	var held *filelock.HeldError
	if errors.As(err, &held) {
		return nil, &InUseError{Dir: l.dir, Holder: held.Holder}
	}
	if err != nil {
		return nil, err
	}
	if err := l.reset(); err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	return lock, nil
}

func startProcesses(ctx context.Context, opts Options, l layout, binaries *build.Binaries, lock *filelock.Lock) (*Cluster, error) {
	opts.Tell.Tell(progress.Event{Detail: "Starting Kubernetes " + binaries.Kubernetes + " on " + loopback + " in " + l.dir + "."})
	ctx, cancel := context.WithTimeoutCause(ctx, opts.StartTimeout, fmt.Errorf("the start took longer than %s", opts.StartTimeout))
	defer cancel()
	id, err := makeIdentity(l, time.Now())
	if err != nil {
		return nil, err
	}
	prober, err := NewProber(id.authority.PEM())
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		c := &Cluster{
			opts: opts, layout: l, binaries: binaries, identity: id, prober: prober, lock: lock,
			spawner: process.NewSpawner(), done: make(chan struct{}),
		}
		err := c.start(ctx)
		if err == nil {
			return c, nil
		}
		c.abandon()
		if err = explainPort(err, opts.Port); try == startTries || !lostPort(err) {
			return nil, err
		}
		if err := l.remove("etcd"); err != nil {
			return nil, err
		}
	}
}

// abandon immediately ends the processes of a failed start.
func (c *Cluster) abandon() {
	c.mu.Lock()
	processes := c.running
	c.running = nil
	c.mu.Unlock()
	for _, p := range processes {
		// An error here means that the process is already gone, as intended.
		_ = p.Kill()
	}
	c.spawner.Close()
}

// lostPort reports whether a component ended because its port was taken.
func lostPort(err error) bool {
	var exit *process.ExitError
	return errors.As(err, &exit) && strings.Contains(strings.Join(exit.Tail, "\n"), "address already in use")
}

// explainPort replaces the exit error of an API server whose requested port was taken
// with an error that names the port.
func explainPort(err error, fixed int) error {
	var exit *process.ExitError
	if fixed != 0 && lostPort(err) && errors.As(err, &exit) && exit.Name == build.APIServer {
		return &PortInUseError{Port: fixed}
	}
	return err
}

// start runs the components in the order of their dependencies.
func (c *Cluster) start(ctx context.Context) error {
	if err := c.choosePorts(ctx); err != nil {
		return err
	}
	if err := c.identity.writeConfigs(c.layout, c.Server(), time.Now()); err != nil {
		return err
	}
	for _, name := range build.All() {
		c.opts.Tell.Tell(progress.Event{Task: name, State: progress.Waiting})
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
	if err := c.startStages(ctx); err != nil {
		return err
	}
	return c.Err()
}

func (c *Cluster) startStages(ctx context.Context) error {
	// Each stage starts its components at once and waits until all are ready. The API
	// server's clients start only when it is ready: a client that is refused once,
	// because RBAC is not there yet, would back off for longer than it gained.
	stages := [][]string{{build.Etcd}, {build.APIServer}, {build.ControllerManager, build.Scheduler}}
	for _, names := range stages {
		if err := c.startStage(ctx, names); err != nil {
			return err
		}
	}
	return waitFor(ctx, c.process(build.ControllerManager), "the default service account", c.defaultServiceAccount)
}

func (c *Cluster) startStage(ctx context.Context, names []string) error {
	started := []*process.Process{}
	for _, name := range names {
		p, err := c.launch(name)
		if err != nil {
			return err
		}
		started = append(started, p)
	}
	for _, p := range started {
		if err := c.ready(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) choosePorts(ctx context.Context) error {
	free, err := FreePorts(ctx, 5)
	if err != nil {
		return err
	}
	c.ports = ports{etcd: free[0], etcdPeer: free[1], controllers: free[2], scheduler: free[3], api: free[4]}
	if c.opts.Port != 0 {
		c.ports.api = c.opts.Port
	}
	return nil
}

// launch starts one component with its arguments.
func (c *Cluster) launch(name string) (*process.Process, error) {
	c.opts.Tell.Tell(progress.Event{Task: name, State: progress.Starting})
	return c.spawn(name, c.args(name))
}

func (c *Cluster) args(name string) []string {
	extra := c.opts.ExtraArgs
	switch name {
	case build.Etcd:
		return etcdArgs(c.layout.path("etcd"), c.ports.etcd, c.ports.etcdPeer, extra.Etcd)
	case build.APIServer:
		return apiServerArgs(c.layout, c.ports, c.opts.AuditLog, extra.APIServer)
	case build.ControllerManager:
		return controllerManagerArgs(c.layout, c.ports, extra.ControllerManager)
	default:
		return schedulerArgs(c.layout, c.ports, extra.Scheduler)
	}
}

// ready waits until a component reports that it is healthy.
func (c *Cluster) ready(ctx context.Context, p *process.Process) error {
	err := waitFor(ctx, p, p.Name(), func(ctx context.Context) error {
		return c.prober.Healthy(ctx, p.Name(), c.port(p.Name()))
	})
	event := progress.Event{Task: p.Name(), State: progress.Done, Detail: fmt.Sprintf("ready on port %d", c.port(p.Name()))}
	if err != nil {
		event = progress.Event{Task: p.Name(), State: progress.Failed}
		if errors.Is(err, context.Canceled) {
			event.Detail = "interrupted"
		}
	}
	c.opts.Tell.Tell(event)
	return err
}

// defaultServiceAccount checks whether Pods can be created in the default namespace.
func (c *Cluster) defaultServiceAccount(ctx context.Context) error {
	config := c.RESTConfig()
	config.Timeout = probeTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	return get(ctx, client, c.Server()+"/api/v1/namespaces/default/serviceaccounts/default")
}
