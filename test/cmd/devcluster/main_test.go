// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/cluster/state"
)

// programEnv makes this test binary act as the program itself, even when the program
// runs itself again as a supervisor.
const programEnv = "DEVCLUSTER_TEST_PROGRAM"

// bound limits how long a test waits.
const bound = 30 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// program is the program with its own cluster directory.
type program struct{ dir string }

// command makes one call of the program.
func (p program) command(t *testing.T, args ...string) (*exec.Cmd, *strings.Builder) {
	t.Helper()
	out := &strings.Builder{}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), programEnv+"=1", dirEnv+"="+p.dir)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// call runs the program and checks its exit code; it returns the output.
func (p program) call(t *testing.T, wantCode int, args ...string) string {
	t.Helper()
	cmd, out := p.command(t, args...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if code := cmd.ProcessState.ExitCode(); code != wantCode {
		t.Fatalf("devcluster %s: exit code %d, want %d\n%s", strings.Join(args, " "), code, wantCode, out)
	}
	return out.String()
}

func (p program) state(t *testing.T) state.State {
	t.Helper()
	found, err := state.Examine(p.dir, process.Table{})
	if err != nil {
		t.Fatal(err)
	}
	return found.State
}

// newProgram creates a program and stops what it left at the end of the test.
func newProgram(t *testing.T) program {
	t.Helper()
	p := program{dir: filepath.Join(t.TempDir(), "cluster")}
	t.Cleanup(func() {
		if id := p.state(t).Supervisor; (process.Table{}).Alive(id) {
			_ = syscall.Kill(id.PID, syscall.SIGKILL)
		}
	})
	return p
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in:\n%s", part, text)
		}
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(bound)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %s: %s", bound, what)
		}
	}
}

func noneAlive(components []cluster.Component) bool {
	return len(state.Survivors(state.State{Components: components}, process.Table{})) == 0
}

// TestLife is a developer's day, including a crash.
func TestLife(t *testing.T) {
	p := newProgram(t)
	contains(t, p.call(t, 1, "status"), "Not running")
	contains(t, p.call(t, 0, "down"), "No cluster is running")
	contains(t, p.call(t, 1, "kubeconfig"), "no cluster is running")

	contains(t, p.call(t, 0, "up", "--simulate", "--nodes=3"), "kube-apiserver: ready on port", "nodes: node-1, node-2, node-3 ready",
		"The cluster is ready", "export KUBECONFIG="+filepath.Join(p.dir, "kubeconfig"))
	first := p.state(t)
	contains(t, p.call(t, 0, "status"), first.Server, "kube-scheduler", " ok\n", " MiB ")
	contains(t, p.call(t, 0, "up"), "running already", "export KUBECONFIG=")
	if again := p.state(t); again.Supervisor != first.Supervisor {
		t.Error("a second up has started a second supervisor")
	}
	if path := strings.TrimSpace(p.call(t, 0, "kubeconfig")); path != first.Kubeconfig {
		t.Errorf("kubeconfig is %s, want %s", path, first.Kubeconfig)
	}
	path := strings.TrimSpace(p.call(t, 0, "kubeconfig", "--user=usher", "--group=crew"))
	if _, err := os.Stat(path); err != nil || path == first.Kubeconfig {
		t.Errorf("the kubeconfig of another user is %s, %v", path, err)
	}

	if err := syscall.Kill(first.Supervisor.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the components end with their supervisor", func() bool { return noneAlive(first.Components) })
	contains(t, p.call(t, 1, "status"), "Not running", "left behind", "ended without a word")
	contains(t, p.call(t, 0, "up", "--nodes=0"), "left behind", "Cleaning up", "The cluster is ready")

	second := p.state(t)
	contains(t, p.call(t, 0, "down"), "The cluster has stopped")
	if (process.Table{}).Alive(second.Supervisor) || !noneAlive(second.Components) {
		t.Error("down has left processes")
	}
	contains(t, p.call(t, 1, "status"), "Not running")
}

func TestAComponentThatEndsTakesTheClusterWithIt(t *testing.T) {
	p := newProgram(t)
	p.call(t, 0, "up", "--nodes=0")
	first := p.state(t)
	if err := syscall.Kill(first.Components[0].Process.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the supervisor ends", func() bool { return !(process.Table{}).Alive(first.Supervisor) })
	if !noneAlive(first.Components) {
		t.Error("components are left")
	}
	contains(t, p.call(t, 1, "status"), "Not running", "etcd ended (signal: killed)", "whole log: ")
	contains(t, p.call(t, 0, "down"), "No cluster is running", "etcd ended (signal: killed)")
	if after := p.call(t, 0, "down"); strings.Contains(after, "etcd") {
		t.Errorf("the old story is told twice: %s", after)
	}
}

// interruptedUp runs up, with flags, sends it SIGINT when the API server starts,
// and returns what it wrote.
func interruptedUp(t *testing.T, p program, flags ...string) string {
	t.Helper()
	cmd, out := p.command(t, append([]string{"up"}, flags...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(p.dir, "logs", "kube-apiserver.log")
	eventually(t, "the API server starts", func() bool {
		_, err := os.Stat(log)
		return err == nil
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitError {
		t.Errorf("up ends with %v, want exit code 1", err)
	}
	return out.String()
}

func TestCtrlCWhileItStarts(t *testing.T) {
	for _, mode := range []string{"background", "foreground"} {
		t.Run(mode, func(t *testing.T) {
			p := newProgram(t)
			contains(t, interruptedUp(t, p, "--nodes=0", "--foreground="+map[string]string{"foreground": "true", "background": "false"}[mode]),
				"Interrupted: nothing is left running")
			if left := runningIn(t, p.dir); len(left) > 0 {
				t.Errorf("processes are left: %q", left)
			}
			contains(t, p.call(t, 1, "status"), "Not running")
		})
	}
}

// runningIn lists the command lines of processes that name a directory.
func runningIn(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), dir) {
			list = append(list, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return list
}

func TestForegroundUntilCtrlC(t *testing.T) {
	p := newProgram(t)
	cmd, out := p.command(t, "up", "--foreground", "--nodes=0")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cluster is ready", func() bool { return p.state(t).Phase == state.Ready })
	contains(t, p.call(t, 0, "status"), "kube-apiserver")
	contains(t, p.call(t, 0, "up"), "running already")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v, want exit code 0", err)
	}
	contains(t, out.String(), "Ctrl-C stops it", "The cluster has stopped")
	if left := runningIn(t, p.dir); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
}

func TestMisuse(t *testing.T) {
	p := program{dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(p.dir, "thesis.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		args []string
		code int
		says string
	}{
		"no command":             {nil, 2, "Usage: devcluster"},
		"help":                   {[]string{"--help"}, 0, "Usage: devcluster"},
		"help of a command":      {[]string{"up", "--help"}, 0, "--foreground"},
		"an unknown command":     {[]string{"start"}, 2, `no command "start"`},
		"an unknown flag":        {[]string{"up", "--bogus"}, 2, "not defined: --bogus"},
		"an argument":            {[]string{"down", "now"}, 2, `unexpected argument "now"`},
		"a port too high":        {[]string{"up", "--port=65536"}, 2, "--port is 65536"},
		"negative nodes":         {[]string{"up", "--nodes=-1"}, 2, "--nodes is -1"},
		"programs that are none": {[]string{"up", "--programs=/nonexistent"}, 2, "--programs: /nonexistent is no folder"},
		"a group of nobody":      {[]string{"kubeconfig", "--group=x"}, 2, "--group needs --user"},
		"a folder of others":     {[]string{"up"}, 1, "thesis.txt"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { contains(t, p.call(t, c.code, c.args...), c.says) })
	}
}

func TestFolder(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/home/me/.cache")
	cases := map[string]struct{ flag, env, want string }{
		"the flag comes first":  {"/a", "/b", "/a"},
		"then the environment":  {"", "/b", "/b"},
		"then the user's cache": {"", "", "/home/me/.cache/usher/devcluster"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := folder(c.flag, func(string) string { return c.env })
			if err != nil || got != c.want {
				t.Errorf("got %s, %v; want %s", got, err, c.want)
			}
		})
	}
}

func TestShorten(t *testing.T) {
	cases := map[string]struct {
		names []string
		want  string
	}{
		"none":     {nil, ""},
		"all":      {[]string{"a", "b", "c"}, "a, b, c"},
		"too many": {[]string{"a", "b", "c", "d"}, "a, b, 2 more"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(shorten(c.names, 3), ", "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// An up must not wait forever for a supervisor that is killed before it reports
// anything.
func TestUpNoticesASupervisorThatDies(t *testing.T) {
	messages := make(chan message)
	close(messages)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close() }()
	log := filepath.Join(t.TempDir(), "supervisor.log")
	if err := os.WriteFile(log, []byte("panic: out of luck\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = (&background{log: log, messages: messages, pipe: reader}).wait(context.Background(), nil)
	if err == nil {
		t.Fatal("it found the cluster ready")
	}
	contains(t, err.Error(), "ended without a word", "panic: out of luck", log)
}
