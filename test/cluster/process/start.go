// SPDX-License-Identifier: Apache-2.0

// Package process starts, watches and ends the child processes of the development
// cluster.
//
// No child outlives its parent: every child asks the kernel for SIGKILL when its parent dies
// (Pdeathsig), even if the parent is itself killed with SIGKILL and cannot clean up. Every child leads
// its own process group, so that Ctrl-C in a terminal reaches only the parent, which then ends its
// children in the order it chooses. The rest of the group ends with the child.
package process

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Spec describes the program to run and where its output goes.
type Spec struct {
	// Name is the name of the process in messages, for instance "etcd".
	Name string
	// Path is the program's file, or its name in $PATH.
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
	// Failed is called with the *ExitError if the process ends by itself; nil is allowed.
	Failed func(error)
	// Ready returns nil when the program is usable. Only package servers/run waits for that.
	Ready func(ctx context.Context) error
}

// forks takes functions for the forking thread. There is one for the whole program, because Pdeathsig
// fires when the forking *thread* ends, and the Go runtime may end threads at any time.
var forks = sync.OnceValue(func() chan<- func() {
	forks := make(chan func())
	go func() {
		runtime.LockOSThread()
		for fork := range forks {
			fork()
		}
	}()
	return forks
})

// Fork calls fork, which starts a child, on a thread that lives as long as the program.
func Fork(fork func() error) error {
	result := make(chan error, 1)
	forks() <- func() { result <- fork() }
	return <-result
}

// Start runs a program. The error names the program that could not be started and the
// cause.
func Start(spec Spec) (*Process, error) {
	log, offset, err := openLog(spec.Log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer func() { _ = log.Close() }()           // the child has its own descriptor
	cmd := exec.Command(spec.Path, spec.Args...) //nolint:noctx // it outlives the call; Stop and Kill end it
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = spec.Dir, spec.Env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := Fork(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &Process{spec: spec, cmd: cmd, logOffset: offset, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()                              // its state says how it ended
		_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // its own children, if there are any
		p.endedAt = time.Now()
		close(p.done)
		if spec.Failed != nil && !p.asked.Load() {
			spec.Failed(p.ExitError())
		}
	}()
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
	return f, offset, err
}
