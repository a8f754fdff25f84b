// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster/process"
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
	*process.Process
	dir string
}

func start(t *testing.T, dir string, args ...string) program {
	t.Helper()
	return program{t, checktest.Must(process.Start(process.Spec{
		Name: "devcluster", Path: os.Args[0], Args: args, Log: filepath.Join(t.TempDir(), "out"),
		Env: append(os.Environ(), programEnv+"=1", dirEnv+"="+dir),
	}))(t), dir}
}

// says waits until the program's output has a text.
func (p program) says(text string) {
	p.Helper()
	registrytest.Until(p.T, text, func() bool { return strings.Contains(strings.Join(p.Tail(100), "\n"), text) })
}

// ends waits for the end of the program, and of all that it has started.
func (p program) ends(code int) {
	p.Helper()
	<-p.Done()
	if state, _ := p.Ended(); state.ExitCode() != code {
		p.Errorf("it ends with %s, want exit code %d", state, code)
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
	<-second.Done() // It has said why.
	checktest.NoError(t, p.Kill())
	p.ends(killed) // and its components with it

	p = start(t, dir, "-nodes=0")
	p.says("with 0 nodes")
	for _, line := range p.processes() {
		if strings.Contains(line, "data-dir") { // etcd
			pid := checktest.Must(strconv.Atoi(strings.Split(line, "/")[2]))(t)
			checktest.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	p.says("etcd ended (signal: killed)")
	p.ends(1)

	p = start(t, dir, "-nodes=0")
	p.says("with 0 nodes")
	checktest.NoError(t, p.Signal(syscall.SIGINT))
	p.ends(0)

	p = start(t, dir, "-nodes=0")
	p.says("etcd: ready")
	checktest.NoError(t, p.Signal(syscall.SIGINT))
	p.says("nothing is left running")
	p.ends(130)
}
