// SPDX-License-Identifier: Apache-2.0

// Package process starts, watches and ends the child processes of the development
// cluster.
//
// No child outlives its parent: every child asks the kernel for SIGKILL when its parent
// dies (Pdeathsig), even if the parent is itself killed with SIGKILL and cannot clean
// up. Every child leads its own process group, so that Ctrl-C in a terminal reaches
// only the parent, which then ends its children in the order it chooses.
package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// ErrClosed is returned by Spawner.Start after Spawner.Close.
var ErrClosed = errors.New("the process spawner is closed")

// Spec describes the program to run and where its output goes.
type Spec struct {
	// Name is what messages call the process, for instance "etcd".
	Name string
	// Path is the program's file.
	Path string
	// Args are the arguments after the program's name.
	Args []string
	// Dir is the working directory; empty means the caller's.
	Dir string
	// Env is the whole environment; nil means the caller's.
	Env []string
	// Log is the file that stdout and stderr are appended to. Its directory is created
	// if missing.
	Log string
}

// Spawner forks children from one operating-system thread that lives as long as the
// Spawner: Pdeathsig fires when the forking *thread* ends, and the Go runtime may end
// threads at any time.
type Spawner struct {
	requests chan spawnRequest
	closing  chan struct{}
	closed   chan struct{}
	once     sync.Once
}

type spawnRequest struct {
	spec  Spec
	reply chan<- spawnReply
}

type spawnReply struct {
	process *Process
	err     error
}

// NewSpawner starts the forking thread. Close it when all its children have ended.
func NewSpawner() *Spawner {
	s := &Spawner{
		requests: make(chan spawnRequest),
		closing:  make(chan struct{}),
		closed:   make(chan struct{}),
	}
	go s.loop()
	return s
}

func (s *Spawner) loop() {
	defer close(s.closed)
	// Never unlocked: the thread must not be reused or ended while a child lives, and
	// it ends together with this goroutine.
	runtime.LockOSThread()
	for {
		select {
		case req := <-s.requests:
			p, err := spawn(req.spec)
			req.reply <- spawnReply{process: p, err: err}
		case <-s.closing:
			return
		}
	}
}

// Start runs a program. The error names the program that could not be started and the
// cause; it is ErrClosed after Close.
func (s *Spawner) Start(spec Spec) (*Process, error) {
	reply := make(chan spawnReply, 1)
	select {
	case s.requests <- spawnRequest{spec: spec, reply: reply}:
	case <-s.closed:
		return nil, fmt.Errorf("start %s: %w", spec.Name, ErrClosed)
	}
	r := <-reply
	return r.process, r.err
}

// Close ends the forking thread. The kernel kills children that still run.
func (s *Spawner) Close() {
	s.once.Do(func() { close(s.closing) })
	<-s.closed
}

func spawn(spec Spec) (*Process, error) {
	log, offset, err := openLog(spec.Log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	// The child keeps its own copy of the descriptor.
	defer func() { _ = log.Close() }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer func() { _ = null.Close() }()
	attr := &os.ProcAttr{
		Dir:   spec.Dir,
		Env:   spec.Env,
		Files: []*os.File{null, log, log},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true},
	}
	started := time.Now()
	proc, err := os.StartProcess(spec.Path, append([]string{spec.Path}, spec.Args...), attr)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &Process{spec: spec, proc: proc, started: started, logOffset: offset, done: make(chan struct{})}
	go p.reap()
	return p, nil
}

// openLog opens a log for appending and returns where this run's part begins.
func openLog(path string) (*os.File, int64, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, 0, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, 0, err
	}
	offset, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, offset, nil
}
