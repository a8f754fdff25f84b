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

// EtcdOptions of StartEtcd. The zero value is good.
type EtcdOptions struct {
	// Port is the client port on 127.0.0.1; 0 means a free one.
	Port int
	// ExtraArgs are appended to etcd's arguments, where the last one of a name
	// wins.
	ExtraArgs []string
	// Binary is etcd's file; empty means the one that package build makes.
	Binary string
	// StartTimeout bounds a start, without the build. 0 means DefaultStartTimeout.
	StartTimeout time.Duration
	// Tell hears of the progress of the build; nil is allowed.
	Tell progress.Sink
}

// Etcd is an etcd with one member that has nothing to do with the control plane,
// for instance as a service registry. It outlives Stop and Kill in that Restart
// brings it back with its port and data. Its methods are safe for concurrent
// use.
type Etcd struct {
	dir     string
	opts    EtcdOptions
	spawner *process.Spawner

	// life serialises what starts and ends the process.
	life   sync.Mutex
	client int
	peer   int

	mu      sync.Mutex
	process *process.Process // nil when it was ended by us
}

// StartEtcd starts an etcd whose data and log are in dir, which is made when it
// is missing; data that are there already are kept. ctx bounds the start (and
// the build of etcd when it is missing), not the process's life.
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

// firstRun starts etcd, with other ports when another program was quicker.
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

// Endpoint is the client URL, for instance "http://127.0.0.1:23790". It stays
// the same over Stop, Kill and Restart.
func (e *Etcd) Endpoint() string { return "http://" + hostPort(e.client) }

// Log is the path of etcd's log.
func (e *Etcd) Log() string { return filepath.Join(e.dir, "etcd.log") }

// PID is the id of the running process; 0 when it does not run.
func (e *Etcd) PID() int {
	if p := e.current(); p != nil {
		return p.PID()
	}
	return 0
}

// Err is nil while etcd runs or was ended by Stop or Kill, and its
// *process.ExitError when it ended on its own.
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

// Stop ends etcd gracefully: SIGTERM, and SIGKILL after a few seconds or when
// ctx ends. It is no error when etcd does not run.
func (e *Etcd) Stop(ctx context.Context) error {
	e.life.Lock()
	defer e.life.Unlock()
	return e.end(func(p *process.Process) error { return p.Stop(ctx, stopGrace) })
}

// Kill ends etcd with SIGKILL, as a crash does. It is no error when etcd does
// not run.
func (e *Etcd) Kill() error {
	e.life.Lock()
	defer e.life.Unlock()
	return e.end((*process.Process).Kill)
}

// Restart starts etcd again with its port and data, after a Stop when it runs,
// and returns when it answers.
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
