// SPDX-License-Identifier: Apache-2.0

// Package checkout handles the checkout of Usher that a development program runs in: it
// builds the programs of the tree and installs its API and its rights.
package checkout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/progress"
)

// compileGrace is how long an interrupted go command may take to end.
const compileGrace = 5 * time.Second

// Find returns the root of the checkout that contains the working directory, or that
// the environment names.
func Find(getenv func(string) string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	pinned, err := build.FindSource(here, getenv)
	if err != nil {
		return "", err
	}
	return filepath.Dir(pinned.Gear()), nil
}

// Program is one of the checkout's own programs.
type Program struct {
	// Name is the name of its build in the progress.
	Name string
	// Module is the directory of its module.
	Module string
	// Pkg is its package, relative to the module.
	Pkg string
	// Out is the output file.
	Out string
}

// Compile builds the program with the go command. The error contains the compiler's
// output; it is the cause of ctx if that ended.
func (p Program) Compile(ctx context.Context, tell progress.Sink) error {
	tell.Tell(progress.Event{Task: p.Name, State: progress.Compiling})
	output, err := goBuild(ctx, p)
	if err != nil {
		tell.Tell(progress.Event{Task: p.Name, State: progress.Failed})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w\n%s", p.Name, err, strings.TrimSpace(output))
	}
	tell.Tell(progress.Event{Task: p.Name, State: progress.Done, Detail: "built"})
	return nil
}

func goBuild(ctx context.Context, p Program) (output string, err error) {
	path, err := exec.LookPath("go")
	if err != nil {
		return "", errors.New("there is no go command in PATH: install Go from https://go.dev/dl/")
	}
	cmd := exec.CommandContext(ctx, path, "build", "-o", p.Out, p.Pkg)
	cmd.Dir = p.Module
	// Static: an image may hold nothing but the program.
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	// A separate process group, so that an interruption reaches the compilers that go
	// has started; Pdeathsig, so that nothing outlives this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = compileGrace
	text := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = text, text
	// Pdeathsig watches the forking thread: keep it until the command ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	return text.String(), err
}
