// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const patience = 20 * time.Second

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func newTestRuntime(t *testing.T, options ProcessOptions) *processRuntime {
	t.Helper()
	if options.Images == nil {
		options.Images = testImages
	}
	options.LogDir = t.TempDir()
	r, err := NewProcessRuntime(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r.(*processRuntime)
}

// launched is an instance with a channel for its end.
type launched struct {
	Instance
	ended chan struct{}
}

func startProcess(t *testing.T, r *processRuntime, changes ...func(*ContainerConfig)) launched {
	t.Helper()
	object := buildPod()
	ip, err := r.Address(object)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	cfg := ContainerConfig{
		Pod: object, IP: ip, HostIP: "127.0.0.1", Exited: func() { close(ended) },
		Container: &corev1.Container{Name: "main", Image: "reg:5000/program:v7", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}},
	}
	for _, change := range changes {
		change(&cfg)
	}
	instance, err := r.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return launched{instance, ended}
}

func withArgs(args ...string) func(*ContainerConfig) {
	return func(cfg *ContainerConfig) { cfg.Container.Args = args }
}

func (l launched) expectExit(t *testing.T, code int32) {
	t.Helper()
	select {
	case <-l.ended:
	case <-time.After(patience):
		t.Fatal("the container has not ended")
	}
	if exit, ok := l.Exit(); !ok || exit.Code != code || exit.At.IsZero() {
		t.Errorf("exit %+v, %v; want code %d", exit, ok, code)
	}
	if pid := l.Describe().PID; alive(pid) {
		t.Errorf("process %d is still there", pid)
	}
}

// alive reports whether the process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, state, _ := bytes.Cut(stat, []byte(") "))
	return len(state) > 0 && state[0] != 'Z' && state[0] != 'X'
}

// fetch returns the answer to a GET; empty if there is none.
func fetch(ctx context.Context, url string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return ""
	}
	body, err := io.ReadAll(response.Body)
	if errors.Join(err, response.Body.Close()) != nil {
		return ""
	}
	return string(body)
}

func TestProcessServesOnItsAddress(t *testing.T) {
	r := newTestRuntime(t, ProcessOptions{})
	l := startProcess(t, r)
	ip := r.addresses.taken["uid-1"].address.String()
	get := func(name string) string { return fetch(t.Context(), "http://"+ip+":8080/"+name) }
	eventually(t, "the container answers", func() bool { return get("POD_NAME") == "web-0" })
	for name, want := range map[string]string{"APP_VERSION": "v7", "POD_IP": ip, "NODE_NAME": "node-1", programEnv: "1"} {
		if got := get(name); got != want {
			t.Errorf("$%s = %q, want %q", name, got, want)
		}
	}
	if !strings.HasPrefix(l.ID(), "process://") || !alive(l.Describe().PID) {
		t.Errorf("ID %s, description %+v", l.ID(), l.Describe())
	}
	if output, err := os.ReadFile(l.Describe().LogFile); err != nil || string(output) != "serving as web-0\n" {
		t.Errorf("log %q, %v", output, err)
	}
	l.Terminate()
	l.expectExit(t, 143)
	l.Terminate() // of no consequence
	l.Kill()
}

func TestProcessThatIgnoresTerm(t *testing.T) {
	r := newTestRuntime(t, ProcessOptions{})
	l := startProcess(t, r, withArgs("deaf"))
	ip := r.addresses.taken["uid-1"].address.String()
	ready := func() bool { return fetch(t.Context(), "http://"+ip+":8080/POD_NAME") == "web-0" }
	eventually(t, "the container answers", ready)
	l.Terminate()
	if !ready() {
		t.Error("SIGTERM ended a container that ignores it")
	}
	l.Kill()
	l.expectExit(t, 137)
}

func TestProcessExitCodeAndLogs(t *testing.T) {
	r := newTestRuntime(t, ProcessOptions{})
	var logs []string
	for attempt := range int32(3) {
		l := startProcess(t, r, withArgs("fail", "$(POD_NAME)", "$$(POD_NAME)"), func(cfg *ContainerConfig) { cfg.Attempt = attempt })
		l.expectExit(t, 3)
		logs = append(logs, l.Describe().LogFile)
	}
	if want := filepath.Join(r.options.LogDir, "shop_web-0_uid-1", "main", "2.log"); logs[2] != want {
		t.Errorf("log %s, want %s", logs[2], want)
	}
	if output, err := os.ReadFile(logs[2]); err != nil || string(output) != "failed as told: [web-0 $(POD_NAME)]\n" {
		t.Errorf("log %q, %v", output, err)
	}
	if _, err := os.Stat(logs[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the log of the instance before the last one is still there: %v", err)
	}
	if _, err := os.Stat(logs[1]); err != nil {
		t.Errorf("the log of the last instance but one is gone: %v", err)
	}
}

func TestProcessCommand(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := newTestRuntime(t, ProcessOptions{})
	for name, command := range map[string][]string{
		"the program without its arguments": {filepath.Base(self), "fail"},
		"the program in an image's folder":  {"/app/" + filepath.Base(self), "fail"},
		"a program of the machine":          {"sh", "-c", "exit 3"},
	} {
		t.Run(name, func(t *testing.T) {
			startProcess(t, r, func(cfg *ContainerConfig) { cfg.Container.Command = command }).expectExit(t, 3)
		})
	}
	_, err = r.Start(ContainerConfig{Pod: buildPod(), Container: &corev1.Container{
		Name: "main", Image: "program", Command: []string{"no-such-program"},
	}})
	if err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("error %v, want one that names the program", err)
	}
}

func TestProcessLeavesNoChildren(t *testing.T) {
	l := startProcess(t, newTestRuntime(t, ProcessOptions{}), withArgs("litter"))
	l.expectExit(t, 0)
	output, err := os.ReadFile(l.Describe().LogFile)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(output)))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the container's child ends", func() bool { return !alive(child) })
}

func TestExec(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	self = filepath.Base(self)
	l := startProcess(t, newTestRuntime(t, ProcessOptions{}))
	if err := l.Exec(t.Context(), []string{self, "sleep", "1ms"}); err != nil {
		t.Errorf("a command that succeeds: %v", err)
	}
	if err := l.Exec(t.Context(), []string{"sh", "-c", `test "$POD_NAME" = web-0`}); err != nil {
		t.Errorf("a command does not see the container's environment: %v", err)
	}
	for _, command := range [][]string{{self, "fail"}, {"no-such-program"}, nil} {
		if err := l.Exec(t.Context(), command); err == nil {
			t.Errorf("command %q succeeds", command)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := l.Exec(ctx, []string{"sh", "-c", self + "; sleep 600"}); err == nil || time.Since(begin) > patience {
		t.Errorf("error %v after %v, want one at the end of the context", err, time.Since(begin))
	}
}

func TestCloseEndsEverything(t *testing.T) {
	r := newTestRuntime(t, ProcessOptions{})
	var all []launched
	for range 3 {
		all = append(all, startProcess(t, r, withArgs("sleep", "10m")))
	}
	ctx, cancel := context.WithCancel(t.Context())
	execEnded := make(chan error, 1)
	go func() { execEnded <- all[0].Exec(ctx, []string{"sleep", "600"}) }()
	cancel()
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		l.expectExit(t, 137)
	}
	if err := <-execEnded; err == nil {
		t.Error("a command went on to its end")
	}
	_, err := r.Start(ContainerConfig{Pod: buildPod(), Container: &corev1.Container{Name: "main", Image: "program"}})
	if !errors.Is(err, errStopping) {
		t.Errorf("start after the end: error %v, want %v", err, errStopping)
	}
	if err := all[0].Exec(t.Context(), []string{"true"}); !errors.Is(err, errStopping) {
		t.Errorf("exec after the end: error %v, want %v", err, errStopping)
	}
}

// TestNoContainerOutlivesTheAgent kills an agent so that it cannot clean up.
func TestNoContainerOutlivesTheAgent(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	agent := exec.CommandContext(t.Context(), self, "agent", dir)
	agent.Env = append(os.Environ(), programEnv+"=1")
	agent.Stderr = os.Stderr
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	eventually(t, "the agent starts a container", func() bool {
		data, err := os.ReadFile(filepath.Join(dir, "pid"))
		pid, _ = strconv.Atoi(string(data))
		return err == nil && pid != 0 && alive(pid)
	})
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait() // reports that the agent was killed
	eventually(t, "the container ends with the agent", func() bool { return !alive(pid) })
}

// programDir creates a directory with the program web and the file text.
func programDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"web": 0o755, "text": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestProgramDir(t *testing.T) {
	dir := programDir(t)
	r := newTestRuntime(t, ProcessOptions{Images: ProgramDir(dir, "v1", "v2")})
	for image, want := range map[string]string{
		"web:v1": "", "reg:5000/a/web:v2": "",
		"web": ReasonErrImagePull, "web:v3": ReasonErrImagePull, "other:v1": ReasonErrImagePull, "text:v1": ReasonErrImagePull,
		"web:": ReasonInvalidImageName, "../web:v1": ReasonInvalidImageName,
	} {
		got := ""
		var failure *PullError
		if _, err := r.Resolve(image); errors.As(err, &failure) {
			got = failure.Reason
		}
		if got != want {
			t.Errorf("image %q: reason %q, want %q", image, got, want)
		}
	}
	if _, _, _, ok := ProgramDir(dir)("web:anything"); !ok {
		t.Error("a tag is refused though none were named")
	}
}

func TestProgramDirByDigest(t *testing.T) {
	r := newTestRuntime(t, ProcessOptions{
		Images: ProgramDir(programDir(t), "v1", "v2"), Aliases: map[string]string{"reg:5000/web:v2": "reg:5000/web:v1"},
	})
	resolve := func(image string) string {
		id, err := r.Resolve(image)
		if err != nil {
			t.Errorf("image %s: %v", image, err)
		}
		return id
	}
	v1 := resolve("reg:5000/web:v1")
	if alias := resolve("reg:5000/web:v2"); alias != v1 {
		t.Errorf("ID of the alias is %s, want %s", alias, v1)
	}
	if pinned := resolve(v1); pinned != v1 {
		t.Errorf("ID by digest is %s, want %s", pinned, v1)
	}
	if _, _, env, _ := r.options.Images(v1); len(env) != 1 || env[0] != "APP_VERSION=v1" {
		t.Errorf("environment by digest is %q, want version v1", env)
	}
}

func TestProcessOptionsAreChecked(t *testing.T) {
	for want, options := range map[string]ProcessOptions{
		"Images": {LogDir: "x"}, "LogDir": {Images: testImages}, "Aliases": {Images: testImages, LogDir: "x", Aliases: map[string]string{"": ""}},
	} {
		if _, err := NewProcessRuntime(options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
}
