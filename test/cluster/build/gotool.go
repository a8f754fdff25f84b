// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// stopGrace is how long an interrupted go command may take to end.
	stopGrace = 5 * time.Second
	// keptLines is how many lines of the go command's output an error quotes.
	keptLines = 15
)

// buildEnv makes binaries static: they need no C compiler, and an image may hold
// nothing else.
const buildEnv = "CGO_ENABLED=0"

// Go runs the go command in the directory of a module. With -v, it calls compiled for
// each package that is compiled. The error quotes what else the command wrote; it is the
// cause of ctx if that ended.
func Go(ctx context.Context, dir string, compiled func(), args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), buildEnv, "GOWORK=off")
	// A separate process group, so that an interruption reaches the compilers that go
	// has started; Pdeathsig, so that the build ends with its parent.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = stopGrace
	output, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	// Pdeathsig watches the forking thread: keep it until the command ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	var lines []string
	for scan := bufio.NewScanner(output); scan.Scan(); {
		if line := scan.Text(); !strings.ContainsAny(line, " \t:") {
			compiled()
		} else if !strings.HasPrefix(line, "go: downloading ") {
			lines = append(lines, line)
		}
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("go %s: %w", args[0], err),
			errors.New(strings.Join(lines[max(0, len(lines)-keptLines):], "\n")))
	}
	return nil
}
