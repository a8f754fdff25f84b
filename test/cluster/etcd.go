// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/process"
)

// EtcdOptions configures StartEtcd. The zero value works.
type EtcdOptions struct {
	// Port is the client port on 127.0.0.1; 0 means a free one.
	Port int
	// ExtraArgs are appended to etcd's arguments; of a repeated flag, the last one
	// wins.
	ExtraArgs []string
}

// Etcd is a single-member etcd independent of the control plane, for instance as a
// service registry. After Stop or Kill, Restart brings it back with its port and data.
// Its methods are safe for concurrent use.
type Etcd struct {
	dir          string
	opts         EtcdOptions
	binary       string
	spawner      *process.Spawner
	client, peer int // ports

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
		return nil, err
	}
	binaries, err := build.Ensure(ctx, build.Options{Only: []string{build.Etcd}})
	if err != nil {
		return nil, err
	}
	if err := checkPort(ctx, opts.Port); err != nil {
		return nil, err
	}
	e := &Etcd{dir: dir, opts: opts, binary: binaries.Path(build.Etcd), spawner: process.NewSpawner()}
	// With other ports if another program took the chosen ones first.
	for range startTries {
		var free []int
		if free, err = FreePorts(ctx, 2); err != nil {
			break
		}
		e.client, e.peer = free[0], free[1]
		if opts.Port != 0 {
			e.client = opts.Port
		}
		if err = e.Restart(ctx); !lostPort(err) {
			break
		}
	}
	if err != nil {
		e.spawner.Close()
		return nil, err
	}
	return e, nil
}

// Endpoint is the client URL, for instance "http://127.0.0.1:23790". Stop, Kill and
// Restart do not change it.
func (e *Etcd) Endpoint() string { return "http://" + hostPort(e.client) }

// Log is the path of etcd's log.
func (e *Etcd) Log() string { return filepath.Join(e.dir, "etcd.log") }

// PID is the running process's ID; 0 if it does not run.
func (e *Etcd) PID() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.process == nil {
		return 0
	}
	return e.process.PID()
}

// Stop ends etcd gracefully: SIGTERM, then SIGKILL after a few seconds or when ctx
// ends. It is not an error if etcd does not run.
func (e *Etcd) Stop(ctx context.Context) error {
	return e.end(func(p *process.Process) error { return p.Stop(ctx, stopGrace) })
}

// Kill ends etcd with SIGKILL, as a crash does. It is not an error if etcd does not
// run.
func (e *Etcd) Kill() error { return e.end((*process.Process).Kill) }

func (e *Etcd) end(how func(*process.Process) error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.process == nil {
		return nil
	}
	err := how(e.process)
	e.process = nil
	return err
}

// Restart restarts etcd with its port and data, after a Stop if it runs, and returns
// when it answers.
func (e *Etcd) Restart(ctx context.Context) error {
	if err := e.Stop(ctx); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the start took longer than %s", startTimeout))
	defer cancel()
	p, err := e.spawner.Start(process.Spec{
		Name: build.Etcd, Path: e.binary, Dir: e.dir, Log: e.Log(),
		Args: etcdArgs(filepath.Join(e.dir, "data"), e.client, e.peer, e.opts.ExtraArgs),
	})
	if err != nil {
		return err
	}
	err = p.WaitReady(ctx, func(ctx context.Context) error { return get(ctx, http.DefaultClient, e.Endpoint()+"/health") })
	if err != nil {
		return errors.Join(err, p.Kill())
	}
	e.process = p
	return nil
}
