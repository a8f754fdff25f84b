// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/usher-dev/usher/test/cluster/progress"
)

const (
	// stopGrace is how long an interrupted go command may take to end.
	stopGrace = 5 * time.Second
	// keptComplaints is how many error lines a build failure quotes.
	keptComplaints = 15
)

var errNoGo = errors.New("there is no go command in PATH")

// goTool runs the go command inside the pinning module.
type goTool struct {
	dir     string // the module
	modFile string // the file in it that replaces its go.mod
	temp    string // scratch directory, removed by the next build even after a SIGKILL
	log     io.Writer
}

// run runs one go command, shows its stderr to watch and returns its stdout.
func (g *goTool) run(ctx context.Context, watch *watch, command string, args ...string) (string, error) {
	path, err := exec.LookPath("go")
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoGo, err)
	}
	cmd := exec.CommandContext(ctx, path, append([]string{command, "-modfile=" + g.modFile}, args...)...)
	cmd.Dir = g.dir
	cmd.Env = append(os.Environ(), buildEnv, "GOWORK=off", "GOTMPDIR="+g.temp)
	// A separate process group, so that an interruption reaches the compilers that go
	// has started; Pdeathsig, so that the build ends with its parent.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = stopGrace
	stdout := &strings.Builder{}
	cmd.Stdout = stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return "", err
	}
	// Pdeathsig watches the forking thread: keep it until the command ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("run go %s: %w", command, err)
	}
	watch.read(io.TeeReader(stderr, g.log))
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("go %s: %w", command, err)
	}
	return stdout.String(), nil
}

// setting is the value of one go setting; empty if it cannot be read.
func (g *goTool) setting(ctx context.Context, key string) string {
	cmd := exec.CommandContext(ctx, "go", "env", key)
	cmd.Dir = g.dir
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// watch makes progress out of what the go command writes to stderr: a line
// "go: downloading MODULE VERSION" for each module that it fetches and, with
// -v, a line PACKAGE for each package that it begins to compile.
type watch struct {
	main       string
	say        func(state progress.State, count, total int)
	downloads  int
	compiled   int
	total      int
	unexpected []string
}

func newWatch(main string, say func(progress.State, int, int)) *watch {
	return &watch{main: main, say: say}
}

// expect sets how many packages are to be compiled, including the main one.
func (w *watch) expect(total int) {
	w.total = total
	if total <= 1 {
		w.say(progress.Linking, 0, 0)
		return
	}
	w.say(progress.Compiling, 0, total)
}

func (w *watch) read(r io.Reader) {
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		w.line(strings.TrimRight(scan.Text(), "\r"))
	}
	// A line longer than the buffer ends the scan: drain the rest, or the go command
	// would hang on a full pipe.
	_, _ = io.Copy(io.Discard, r)
}

func (w *watch) line(line string) {
	switch {
	case strings.HasPrefix(line, "go: downloading "):
		w.downloads++
		w.say(progress.Downloading, w.downloads, 0)
	case line == w.main:
		w.say(progress.Linking, 0, 0)
	case line != "" && !strings.ContainsAny(line, " \t:"):
		w.compiled++
		w.say(progress.Compiling, w.compiled, max(w.total, w.compiled))
	case line != "":
		w.unexpected = append(w.unexpected, line)
	}
}

// complaints are the last lines that are not progress.
func (w *watch) complaints() []string {
	return w.unexpected[max(0, len(w.unexpected)-keptComplaints):]
}
