// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster"
)

// programEnv makes this test binary act as the program itself, even when the program
// runs itself again in the background.
const programEnv = "DEVCLUSTER_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// program is the program with its own cluster directory.
type program struct {
	*testing.T
	dir string
}

func newProgram(t *testing.T) program {
	p := program{t, filepath.Join(t.TempDir(), "cluster")}
	t.Cleanup(func() {
		if pid, _ := cluster.Running(p.dir); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return p
}

// command makes one call of the program.
func (p program) command(args ...string) (*exec.Cmd, *strings.Builder) {
	out := &strings.Builder{}
	cmd := exec.CommandContext(p.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), programEnv+"=1", dirEnv+"="+p.dir)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// call runs the program and checks its exit code and parts of its output.
func (p program) call(code int, call string, parts ...string) {
	p.Helper()
	cmd, out := p.command(strings.Fields(call)...)
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != code {
		p.Fatalf("devcluster %s: %v, want exit code %d\n%s", call, err, code, out)
	}
	p.contains(out.String(), parts...)
}

func (p program) contains(text string, parts ...string) {
	p.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			p.Errorf("%q is not in:\n%s", part, text)
		}
	}
}

// running is the process that runs the cluster.
func (p program) running() int {
	p.Helper()
	pid, err := cluster.Running(p.dir)
	registrytest.NoError(p.T, err)
	return pid
}

// processes lists the command lines that name the directory.
func (p program) processes() (list []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well-formed
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(line), p.dir) {
			list = append(list, file+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return list
}

func (p program) ended() bool { return len(p.processes()) == 0 }

// TestLife is a developer's day, including crashes.
func TestLife(t *testing.T) {
	p := newProgram(t)
	p.call(exitError, "status", "no cluster is running")
	p.call(0, "down", "No cluster is running")
	p.call(0, "up --simulate --nodes=3", "with 3 nodes", "export KUBECONFIG="+filepath.Join(p.dir, "kubeconfig"))
	first := p.running()
	p.call(0, "status", "with 3 nodes", "Logs:")
	p.call(0, "up", "already running", "export KUBECONFIG=")
	if p.running() != first {
		t.Error("a second up has started a second cluster")
	}
	registrytest.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	registrytest.Until(p.T, "the components end with the process that started them", p.ended)
	p.call(exitError, "status", "no cluster is running")

	p.call(0, "up --nodes=0", "with 0 nodes")
	for _, process := range p.processes() {
		if strings.Contains(process, "data-dir") { // etcd
			registrytest.NoError(t, exec.CommandContext(t.Context(), "kill", "-9", strings.Split(process, "/")[2]).Run())
		}
	}
	registrytest.Until(p.T, "the cluster ends with its component", p.ended)
	if log, err := os.ReadFile(logFile(p.dir)); err != nil || !strings.Contains(string(log), "etcd ended (signal: killed)") {
		t.Errorf("the log does not give the reason: %s, %v", log, err)
	}

	p.call(0, "up --nodes=0", "with 0 nodes")
	p.call(0, "down", "The cluster has stopped")
	registrytest.Until(p.T, "no process is left", p.ended) // it may still be exiting
}

// TestCtrlC interrupts a start, and a cluster in the foreground.
func TestCtrlC(t *testing.T) {
	for name, c := range map[string]struct {
		args string
		file string // exists once it is to be interrupted
		code int
		says string
	}{
		"up":  {"up --nodes=0", "logs/kube-apiserver.log", exitError, "nothing is left running"},
		"run": {"run --nodes=0", "ready.txt", 0, "export KUBECONFIG="},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram(t)
			cmd, out := p.command(strings.Fields(c.args)...)
			registrytest.NoError(t, cmd.Start())
			registrytest.Until(p.T, c.file, func() bool {
				_, err := os.Stat(filepath.Join(p.dir, c.file))
				return err == nil
			})
			registrytest.NoError(t, cmd.Process.Signal(os.Interrupt))
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != c.code {
				t.Errorf("it ends with %v, want exit code %d", err, c.code)
			}
			p.contains(out.String(), c.says)
			if left := p.processes(); len(left) > 0 {
				t.Errorf("processes are left: %q", left)
			}
		})
	}
}

func TestMisuse(t *testing.T) {
	p := newProgram(t)
	p.call(exitUsage, "", "Usage: devcluster")
	p.call(exitUsage, "start", "Usage: devcluster")
	p.call(exitUsage, "up --bogus", "not defined: -bogus")
	p.call(0, "up --help", "-simulate")
	// A start in the background that fails shows why.
	p.call(exitError, "up --port=65536", "the cluster has not started", "65536")
}
