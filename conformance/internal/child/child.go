// SPDX-License-Identifier: Apache-2.0

// Package child starts servers for a test and ends them with it.
package child

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// patience bounds what a server may need to start, stop or reload.
	patience = 20 * time.Second
	// pause is the time between two looks.
	pause = 10 * time.Millisecond
	// tail is how much of a server's output a failed test shows, in bytes.
	tail = 8 << 10
)

// Process is a running server.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// output keeps what a server says.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(data)
}

func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := o.text.Bytes()
	return string(text[max(len(text)-tail, 0):])
}

// Start starts a server. It is killed, with its children, when the test ends; a
// test that failed shows what it said.
func Start(t testing.TB, env []string, name string, args ...string) *Process {
	t.Helper()
	said := &output{}
	//nolint:noctx // The server outlives calls: Kill ends it.
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = said, said
	// A group of its own, so that workers go with their master.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel kills the server when this thread ends, as it does when the
		// test is killed; so it must not end before.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // Killed is how it ends.
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		p.Kill(t)
		if t.Failed() {
			t.Logf("%s said:\n%s", name, said.last())
		}
	})
	return p
}

// Kill ends the server at once, and waits for it. It may be called again.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // It may be gone already.
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Errorf("process %d does not end", p.cmd.Process.Pid)
	}
}

// Signal sends a signal to the server's first process.
func (p *Process) Signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatalf("signal %v: %v", signal, err)
	}
}

// Running says whether the server has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// FreePort returns a port of 127.0.0.1 that nobody listens on, for TCP and UDP.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		udp, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", tcp.Addr().String())
		_ = tcp.Close()
		if err == nil {
			_ = udp.Close()
			return tcp.Addr().(*net.TCPAddr).Port
		}
	}
	t.Fatal("no port is free for both TCP and UDP")
	return 0
}

// Await waits until a condition holds: look returns what is in its way, empty
// for nothing.
func Await(t testing.TB, what string, look func() string) {
	t.Helper()
	wrong := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(pause) {
		if wrong = look(); wrong == "" {
			return
		}
	}
	t.Fatalf("%s: %s after %s", what, strings.TrimSpace(wrong), patience)
}
