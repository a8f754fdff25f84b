// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/cluster/process"
)

// shell is an image that consists of the machine's shell.
func shell(string) (string, []string, error) { return "/bin/sh", []string{"APP_VERSION=v7"}, nil }

func newTestRuntime(t *testing.T) *processRuntime {
	t.Helper()
	r, err := NewProcessRuntime(ProcessOptions{Images: shell, LogDir: t.TempDir()})
	registrytest.NoError(t, err)
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r.(*processRuntime)
}

// startProcess starts a container that runs a script, and waits until it writes that it
// is ready if the script says so.
func startProcess(t *testing.T, r *processRuntime, script string) (i *processInstance, log string) {
	t.Helper()
	instance, err := r.Start(ContainerConfig{
		Pod: buildPod(), IP: "127.77.0.1", Exited: func() {},
		Container: &corev1.Container{Name: "main", Image: "shop/sh:v7", Args: []string{"-c", script}, Env: []corev1.EnvVar{{Name: "SET", Value: "by spec"}}},
	})
	registrytest.NoError(t, err)
	log = filepath.Join(r.options.LogDir, "shop_web-0_uid-1", "main", "0.log")
	if strings.Contains(script, "ready") {
		registrytest.Until(t, "the container is ready", func() bool { return len(process.TailFile(log, 1)) > 0 })
	}
	return instance.(*processInstance), log
}

// alive reports whether a process runs; a zombie does not.
func alive(pid string) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// TestProcessEnds ends containers in each way.
func TestProcessEnds(t *testing.T) {
	r := newTestRuntime(t)
	for name, test := range map[string]struct {
		script string
		end    func(Instance)
		code   int32
	}{
		"on its own":       {"exit 3", func(Instance) {}, 3},
		"SIGTERM":          {"echo ready; sleep 600 & wait", Instance.Terminate, 143},
		"SIGTERM, handled": {"trap 'exit 0' TERM; echo ready; sleep 600 & wait", Instance.Terminate, 0},
		"SIGKILL":          {"trap '' TERM; echo ready; while :; do sleep 1; done", func(i Instance) { i.Terminate(); i.Kill() }, 137},
	} {
		t.Run(name, func(t *testing.T) {
			i, _ := startProcess(t, r, test.script)
			test.end(i)
			registrytest.Until(t, "the container ends", func() bool { return i.Exit() != nil })
			if exit := i.Exit(); exit.Code != test.code || exit.At.IsZero() {
				t.Errorf("exit %+v, want code %d", exit, test.code)
			}
			i.Terminate() // of no consequence
			i.Kill()
		})
	}
}

func TestProcessEnvironment(t *testing.T) {
	r := newTestRuntime(t)
	_, log := startProcess(t, r, `echo $POD_NAME $POD_NAMESPACE $POD_IP $NODE_NAME $PORT $APP_VERSION $SET; echo ready; sleep 600`)
	if got, want := process.TailFile(log, 2)[0], "web-0 shop 127.77.0.1 node-1 8080 v7 by spec"; got != want {
		t.Errorf("the environment is %q, want %q", got, want)
	}
	_, err := r.Start(ContainerConfig{Pod: buildPod(), Container: &corev1.Container{Command: []string{"no-such-program"}}})
	if err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("error %v, want one that names the program", err)
	}
}

func TestNothingOutlivesItsContainer(t *testing.T) {
	_, log := startProcess(t, newTestRuntime(t), `sleep 600 & echo $! ready`)
	child, _, _ := strings.Cut(process.TailFile(log, 1)[0], " ")
	registrytest.Until(t, "the container's child ends", func() bool { return !alive(child) })
}

func TestCloseEndsEverything(t *testing.T) {
	r := newTestRuntime(t)
	i, _ := startProcess(t, r, "sleep 600")
	registrytest.NoError(t, r.Close(t.Context()))
	if exit := i.Exit(); exit == nil || exit.Code != 137 {
		t.Errorf("exit %+v, want code 137", exit)
	}
	if _, err := r.Start(ContainerConfig{Pod: buildPod(), Container: &corev1.Container{}}); !errors.Is(err, process.ErrClosed) {
		t.Errorf("start after the end: error %v, want %v", err, process.ErrClosed)
	}
}

// agentEnv makes this test binary act as an agent that runs a container.
const agentEnv = "NODE_TEST_AGENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(agentEnv); dir != "" {
		r, err := NewProcessRuntime(ProcessOptions{Images: shell, LogDir: dir})
		if err == nil {
			_, err = r.Start(ContainerConfig{Pod: buildPod(), Exited: func() {}, Container: &corev1.Container{Args: []string{"-c", "echo $$ ready; sleep 600"}}})
		}
		fmt.Println(err)
		select {}
	}
	os.Exit(m.Run())
}

// TestNoContainerOutlivesTheAgent kills an agent so that it cannot clean up.
func TestNoContainerOutlivesTheAgent(t *testing.T) {
	dir := t.TempDir()
	agent := exec.CommandContext(t.Context(), os.Args[0])
	agent.Env = append(os.Environ(), agentEnv+"="+dir)
	registrytest.NoError(t, agent.Start())
	pid := ""
	registrytest.Until(t, "the agent runs a container", func() bool {
		logs, err := filepath.Glob(filepath.Join(dir, "*", "*.log"))
		if err != nil || len(logs) == 0 || len(process.TailFile(logs[0], 1)) == 0 {
			return false
		}
		pid, _, _ = strings.Cut(process.TailFile(logs[0], 1)[0], " ")
		return alive(pid)
	})
	registrytest.NoError(t, agent.Process.Kill())
	_ = agent.Wait() // reports that the agent was killed
	registrytest.Until(t, "the container ends with the agent", func() bool { return !alive(pid) })
}

func TestProgramDir(t *testing.T) {
	dir := t.TempDir()
	registrytest.NoError(t, os.WriteFile(filepath.Join(dir, "web"), nil, 0o755))
	for image, want := range map[string]string{
		"web:v1": "v1", "reg:5000/a/web:v2": "v2", "web": "", "web:v3": "", "other:v1": "", "web:": "",
	} {
		program, env, err := ProgramDir(dir, "v1", "v2")(image)
		if want == "" && err == nil || want != "" && (err != nil || program != filepath.Join(dir, "web") || env[0] != "APP_VERSION="+want) {
			t.Errorf("image %q: %s with %q, %v; want version %q", image, program, env, err, want)
		}
	}
	if _, _, err := ProgramDir(dir)("web:anything"); err != nil {
		t.Errorf("a tag is refused though none were named: %v", err)
	}
}

func TestAddressesAreEachPodsOwn(t *testing.T) {
	one, other := newAddressPool(77), newAddressPool(77) // two clusters that start at the same address
	seen := map[string]bool{}
	for _, pool := range []*addressPool{one, one, other} {
		ip, err := pool.take("uid")
		if err != nil || seen[ip] || !strings.HasPrefix(ip, "127.") {
			t.Errorf("address %s, %v, beside %v", ip, err, seen)
		}
		seen[ip] = true
		defer pool.release("uid")
	}
}

func TestImageID(t *testing.T) {
	ids := map[string]string{}
	for _, image := range []string{"web", "web:v1", "web:v2", "reg:5000/web:v1"} {
		id, err := imageID(image)
		if other, found := ids[id]; found || err != nil || !strings.Contains(id, "web@sha256:") {
			t.Errorf("image %s has the ID %s, %v, as %s", image, id, err, other)
		}
		ids[id] = image
	}
	if _, err := imageID("Not An Image"); err == nil {
		t.Error("an invalid name has an ID")
	}
}
