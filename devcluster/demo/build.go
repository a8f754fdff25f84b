// SPDX-License-Identifier: Apache-2.0

package demo

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

	"github.com/usher-dev/usher/devcluster/internal/cluster/build"
	"github.com/usher-dev/usher/devcluster/internal/cluster/progress"
)

// compileGrace is how long an interrupted go command may take to leave.
const compileGrace = 5 * time.Second

// findRoot finds the checkout, whose programs are built and whose manifests are
// applied.
func findRoot(getenv func(string) string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	pinned, err := build.FindSource(here, getenv)
	if err != nil {
		return "", err
	}
	return filepath.Dir(filepath.Dir(pinned.Dir)), nil
}

// program is one of the checkout's own programs.
type program struct {
	name   string // what the progress calls its build
	module string // folder of its module
	pkg    string
	out    string
}

// compile builds a program with the go command.
func (p program) compile(ctx context.Context, tell progress.Sink) error {
	tell.Tell(progress.Event{Task: p.name, State: progress.Compiling})
	output, err := goBuild(ctx, p)
	if err != nil {
		tell.Tell(progress.Event{Task: p.name, State: progress.Failed})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w\n%s", p.name, err, strings.TrimSpace(output))
	}
	tell.Tell(progress.Event{Task: p.name, State: progress.Done, Detail: "built"})
	return nil
}

func goBuild(ctx context.Context, p program) (output string, err error) {
	path, err := exec.LookPath("go")
	if err != nil {
		return "", errors.New("there is no go command in PATH: install Go from https://go.dev/dl/")
	}
	cmd := exec.CommandContext(ctx, path, "build", "-o", p.out, p.pkg)
	cmd.Dir = p.module
	cmd.Env = append(os.Environ(), "GOWORK=off")
	// A group of its own, so that an interruption reaches the compilers that go
	// has started; Pdeathsig, so that nothing outlives this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = compileGrace
	text := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = text, text
	// Pdeathsig watches the thread that forks: keep it until the command ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	return text.String(), err
}
