// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/progress"
)

// EtcdOptions configures StartEtcd. The zero value works.
type EtcdOptions struct {
	// Port is the client port on 127.0.0.1; 0 means a free one.
	Port int
	// ExtraArgs are appended to etcd's arguments; of a repeated flag, the last one
	// wins.
	ExtraArgs []string
	// Binary is etcd's executable; empty means the one that package build builds.
	Binary string
	// StartTimeout bounds the start, without the build. 0 means DefaultStartTimeout.
	StartTimeout time.Duration
	// Tell receives the progress of the build; nil is allowed.
	Tell progress.Sink
}

// Etcd is a single-member etcd independent of the control plane, for instance as a
// service registry. After Stop or Kill, Restart brings it back with its port and data.
// Its methods are safe for concurrent use.
type Etcd struct {
	dir     string
	opts    EtcdOptions
	spawner *process.Spawner

	// life serialises starting and ending the process.
	life   sync.Mutex
	client int
	peer   int

	mu      sync.Mutex
	process *process.Process // nil if we ended it
}

// StartEtcd starts an etcd with its data and log in dir, which is created if missing;
// existing data is kept. ctx bounds the start (and the build of etcd if it is missing),
// not the life of the process.
//
// Errors are those of Start.
func StartEtcd(ctx context.Context, dir string, opts EtcdOptions) (*Etcd, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("etcd: folder: %w", err)
	}
	if opts.StartTimeout == 0 {
		opts.StartTimeout = DefaultStartTimeout
	}
	if opts.Binary == "" {
		binaries, err := build.Ensure(ctx, build.Options{Only: []string{build.Etcd}, Tell: opts.Tell})
		if err != nil {
			return nil, err
		}
		opts.Binary = binaries.Path(build.Etcd)
	}
	if err := CheckPort(ctx, opts.Port); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("etcd: folder: %w", err)
	}
	e := &Etcd{dir: dir, opts: opts, spawner: process.NewSpawner()}
	if err := e.firstRun(ctx); err != nil {
		e.spawner.Close()
		return nil, err
	}
	return e, nil
}

// firstRun starts etcd, with other ports if another program took the chosen ones first.
func (e *Etcd) firstRun(ctx context.Context) error {
	e.life.Lock()
	defer e.life.Unlock()
	for try := 1; ; try++ {
		free, err := FreePorts(ctx, 2)
		if err != nil {
			return err
		}
		e.client, e.peer = free[0], free[1]
		if e.opts.Port != 0 {
			e.client = e.opts.Port
		}
		err = e.run(ctx)
		if err == nil {
			return nil
		}
		if !lostPort(err) || try == startTries {
			return err
		}
		if e.opts.Port != 0 && tryPort(ctx, e.opts.Port) != nil {
			return &PortInUseError{Port: e.opts.Port}
		}
	}
}

// run starts the process and waits until it answers. The caller holds life.
func (e *Etcd) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, e.opts.StartTimeout, fmt.Errorf("the start took longer than %s", e.opts.StartTimeout))
	defer cancel()
	p, err := e.spawner.Start(process.Spec{
		Name: build.Etcd, Path: e.opts.Binary, Dir: e.dir, Log: e.Log(),
		Args: etcdArgs(filepath.Join(e.dir, "data"), e.client, e.peer, e.opts.ExtraArgs),
	})
	if err != nil {
		return err
	}
	prober := &Prober{client: newClient(nil)}
	err = waitFor(ctx, p, "etcd", func(ctx context.Context) error { return prober.Healthy(ctx, build.Etcd, e.client) })
	if err != nil {
		return errors.Join(err, p.Kill())
	}
	e.mu.Lock()
	e.process = p
	e.mu.Unlock()
	return nil
}

// Endpoint is the client URL, for instance "http://127.0.0.1:23790". Stop, Kill and
// Restart do not change it.
func (e *Etcd) Endpoint() string { return "http://" + hostPort(e.client) }

// Log is the path of etcd's log.
func (e *Etcd) Log() string { return filepath.Join(e.dir, "etcd.log") }

// PID is the running process's ID; 0 if it does not run.
func (e *Etcd) PID() int {
	if p := e.current(); p != nil {
		return p.PID()
	}
	return 0
}

// Err is nil while etcd runs or was ended by Stop or Kill, and its *process.ExitError
// if it ended on its own.
func (e *Etcd) Err() error {
	p := e.current()
	if p == nil || p.Asked() {
		return nil
	}
	if exit := p.ExitError(); exit != nil {
		return exit
	}
	return nil
}

// Stop ends etcd gracefully: SIGTERM, then SIGKILL after a few seconds or when ctx
// ends. It is not an error if etcd does not run.
func (e *Etcd) Stop(ctx context.Context) error {
	e.life.Lock()
	defer e.life.Unlock()
	return e.end(func(p *process.Process) error { return p.Stop(ctx, stopGrace) })
}

// Kill ends etcd with SIGKILL, as a crash does. It is not an error if etcd does not
// run.
func (e *Etcd) Kill() error {
	e.life.Lock()
	defer e.life.Unlock()
	return e.end((*process.Process).Kill)
}

// Restart restarts etcd with its port and data, after a Stop if it runs, and returns
// when it answers.
func (e *Etcd) Restart(ctx context.Context) error {
	e.life.Lock()
	defer e.life.Unlock()
	if err := e.end(func(p *process.Process) error { return p.Stop(ctx, stopGrace) }); err != nil {
		return err
	}
	err := e.run(ctx)
	if lostPort(err) {
		return &PortInUseError{Port: e.client}
	}
	return err
}

func (e *Etcd) end(how func(*process.Process) error) error {
	p := e.current()
	if p == nil {
		return nil
	}
	err := how(p)
	e.mu.Lock()
	e.process = nil
	e.mu.Unlock()
	return err
}

func (e *Etcd) current() *process.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.process
}
