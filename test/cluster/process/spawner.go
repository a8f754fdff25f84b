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
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
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
	forks  chan func()
	closed chan struct{}
	once   sync.Once
}

// NewSpawner starts the forking thread. Close it when all its children have ended.
func NewSpawner() *Spawner {
	s := &Spawner{forks: make(chan func()), closed: make(chan struct{})}
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		for {
			select {
			case fork := <-s.forks:
				fork()
			case <-s.closed:
				return
			}
		}
	}()
	return s
}

// Do runs fork on the forking thread. It fails with ErrClosed after Close.
func (s *Spawner) Do(fork func() error) error {
	result := make(chan error, 1)
	select {
	case s.forks <- func() { result <- fork() }:
		return <-result
	case <-s.closed:
		return ErrClosed
	}
}

// Start runs a program. The error names the program that could not be started and the
// cause; it is ErrClosed after Close.
func (s *Spawner) Start(spec Spec) (*Process, error) {
	log, offset, err := openLog(spec.Log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer func() { _ = log.Close() }()           // the child has its own descriptor
	cmd := exec.Command(spec.Path, spec.Args...) //nolint:noctx // it outlives the call; Stop and Kill end it
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = spec.Dir, spec.Env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := s.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &Process{spec: spec, cmd: cmd, logOffset: offset, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // its state says how it ended
		close(p.done)
	}()
	return p, nil
}

// Close ends the forking thread. The kernel kills children that still run.
func (s *Spawner) Close() { s.once.Do(func() { close(s.closed) }) }

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
	return f, offset, err
}
