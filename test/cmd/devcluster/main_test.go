// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/checkout"
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

// ends waits for the end of the program, and of all processes that it has started.
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
	<-second.Done() // It has printed why.
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

	p = start(t, dir, "-nodes=0", "-ha", "-api-servers=3")
	p.says("Behind:   3 API servers")
	checktest.NoError(t, p.Signal(syscall.SIGINT))
	p.ends(0)

	p = start(t, dir, "-nodes=0")
	p.says("etcd: ready")
	checktest.NoError(t, p.Signal(syscall.SIGINT))
	p.says("nothing is left running")
	p.ends(130)
}

// sh runs commands in an environment that the program describes.
func (p program) sh(script string) (string, error) {
	p.Helper()
	said := strings.Join(p.Tail(100), "\n")
	exports := regexp.MustCompile(`export (KUBECONFIG=\S+)`).FindStringSubmatch(said)
	if exports == nil {
		p.Fatalf("it does not say how to use it: %s", said)
	}
	ctx, cancel := context.WithTimeout(p.Context(), 3*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	command.Env = append(os.Environ(), exports[1], "PATH="+filepath.Join(p.dir, "bin")+":"+os.Getenv("PATH"), "HOME="+p.TempDir())
	out, err := command.CombinedOutput()
	return string(out), err
}

// TestUsher: the commands of README and of two pages work as they stand, Pods drain before they are
// deleted, and the plugin finds no problem.
func TestUsher(t *testing.T) {
	root := checktest.Must(checkout.Find())(t)
	p := start(t, filepath.Join(t.TempDir(), "cluster"), "-usher")
	p.says("Stop it")
	for _, step := range [][2]string{
		{"first-deployment.md", "service"}, {"first-deployment.md", "service delete"}, {"first-deployment.md", "service drain"},
		{"first-cloneset.md", "cloneset"}, {"first-cloneset.md", "cloneset update"},
	} {
		script := checktest.Must(checkout.DocumentedStep(root, step[0], step[1]))(t)
		if out, err := p.sh(script); err != nil {
			t.Fatalf("%s\n%s\n%v", script, out, err)
		}
	}
	events := checktest.Must(p.sh("kubectl get events -o custom-columns=REASON:.reason"))(t)
	if !strings.Contains(events, "DeletionRequested") || strings.Contains(events, "DeletedUnguarded") {
		t.Errorf("the guard was not asked:\n%s", events)
	}
	if out, err := p.sh("kubectl usher doctor && kubectl version"); err != nil || !strings.Contains(out, "Client Version: v1.") {
		t.Errorf("doctor and version: %v\n%s", err, out)
	}
	// Usher ends: the cluster says so, and ends too.
	for _, line := range p.processes() {
		if strings.Contains(line, "bin/usher") && strings.Contains(line, "registration") {
			checktest.NoError(t, syscall.Kill(checktest.Must(strconv.Atoi(strings.Split(line, "/")[2]))(t), syscall.SIGTERM))
		}
	}
	p.says("devcluster: usher ended")
	p.ends(1)
}

// TestProcessesServeNoServices: if containers are processes, objects that need EndpointSlices are
// refused, with a message that says what to do.
func TestProcessesServeNoServices(t *testing.T) {
	p := start(t, filepath.Join(t.TempDir(), "cluster"), "-usher", "-simulate=false")
	p.says("-usher needs simulated containers")
	p.ends(2)

	p = start(t, filepath.Join(t.TempDir(), "cluster"))
	p.says("Stop it")
	root := checktest.Must(checkout.Find())(t)
	checktest.NoError(t, checkout.InstallKubectl(t.Context(), root, filepath.Join(p.dir, "bin")))
	script := checktest.Must(checkout.DocumentedStep(root, "first-deployment.md", "service"))(t)
	apply, _, _ := strings.Cut(script, "kubectl rollout")
	registrytest.Until(t, "Registrations of Services to be refused", func() bool {
		out, err := p.sh("kubectl apply --server-side -f " + filepath.Join(root, "config", "crd") + " && kubectl wait --for condition=Established crd --all\n" + apply)
		return err != nil && strings.Contains(out, "addresses of 127.0.0.0/8") && strings.Contains(out, "make up ARGS=--usher")
	})
	for name, spec := range map[string]string{"slices": "endpointSlice: {}", "mine": "service: {}", "ads": "xds: {}"} {
		out, err := p.sh("kubectl apply -f - <<< '{apiVersion: usher.dev/v1alpha1, kind: Registry, metadata: {name: " + name + "}, spec: {" + spec + "}}'")
		if err == nil || !strings.Contains(out, "addresses of 127.0.0.0/8") {
			t.Errorf("Registry %s: %v %s", name, err, out)
		}
	}
	if out, err := p.sh("kubectl apply -f - <<< '{apiVersion: usher.dev/v1alpha1, kind: Registry, metadata: {name: service}, spec: {service: {}}}'"); err != nil {
		t.Errorf("what Usher makes by itself: %s", out)
	}
	checktest.NoError(t, p.Signal(syscall.SIGINT))
	p.ends(0)
}
