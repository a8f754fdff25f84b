// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// programEnv makes this test binary act as the program itself.
const programEnv = "DEVCLUSTER_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// program is a run of the program in a directory.
type program struct {
	*testing.T
	*exec.Cmd
	dir, out string
}

func start(t *testing.T, dir string, args ...string) program {
	t.Helper()
	out := checktest.Must(os.CreateTemp(t.TempDir(), "out"))(t)
	p := program{t, exec.CommandContext(t.Context(), os.Args[0], args...), dir, out.Name()}
	p.Env, p.Stdout, p.Stderr = append(os.Environ(), programEnv+"=1", dirEnv+"="+dir), out, out
	checktest.NoError(t, p.Start())
	return p
}

// says waits until the program's output has a text.
func (p program) says(text string) {
	p.Helper()
	registrytest.Until(p.T, text, func() bool {
		said, err := os.ReadFile(p.out)
		return err == nil && strings.Contains(string(said), text)
	})
}

// ends waits for the end of the program, and of all that it has started.
func (p program) ends(code int) {
	p.Helper()
	if err := p.Wait(); p.ProcessState.ExitCode() != code {
		p.Errorf("it ends with %v, want exit code %d", err, code)
	}
	registrytest.Until(p.T, "no process is left", func() bool { return len(p.processes()) == 0 })
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

// TestLife is a developer's day, including crashes.
func TestLife(t *testing.T) {
	const killed = -1
	dir := filepath.Join(t.TempDir(), "cluster")
	p := start(t, dir, "-simulate", "-nodes=3")
	p.says("with 3 nodes")
	p.says("export KUBECONFIG=" + dir)
	second := start(t, dir, "-nodes=0")
	second.says("already runs")
	_ = second.Wait() // It has said why.
	checktest.NoError(t, p.Process.Kill())
	p.ends(killed) // and its components with it

	p = start(t, dir, "-nodes=0")
	p.says("with 0 nodes")
	for _, process := range p.processes() {
		if strings.Contains(process, "data-dir") { // etcd
			checktest.NoError(t, exec.CommandContext(t.Context(), "kill", "-9", strings.Split(process, "/")[2]).Run())
		}
	}
	p.says("etcd ended (signal: killed)")
	p.ends(1)

	p = start(t, dir, "-nodes=0")
	p.says("with 0 nodes")
	checktest.NoError(t, p.Process.Signal(syscall.SIGINT))
	p.ends(0)

	p = start(t, dir, "-nodes=0")
	p.says("etcd: ready")
	checktest.NoError(t, p.Process.Signal(syscall.SIGINT))
	p.says("nothing is left running")
	p.ends(130)
}
