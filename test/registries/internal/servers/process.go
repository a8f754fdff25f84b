// SPDX-License-Identifier: Apache-2.0

// Package servers runs the real servers that connectors are tested with, for the
// duration of a test.
package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usher-dev/usher/test/registries/fetch"
)

const (
	// startTimeout bounds the time until a server is ready: a Java server takes seconds
	// when many tests share a processor.
	startTimeout = 2 * time.Minute
	// fetchTimeout bounds a first download or build.
	fetchTimeout = 30 * time.Minute
	// readyPoll is how often to check whether a server is ready.
	readyPoll = 50 * time.Millisecond
	// shownLines is how much of its output a failed test shows.
	shownLines = 40
)

// Spec describes how to run a server.
type Spec struct {
	// Name is for people.
	Name string
	// Path is the program, Args are its arguments.
	Path string
	Args []string
	// Dir is the working directory; the test's if empty.
	Dir string
	// Env is added to the environment.
	Env []string
	// Ready returns nil when the server is usable.
	Ready func(ctx context.Context) error
}

// Process is a server that runs for the duration of a test.
type Process struct {
	spec Spec
	log  string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
	end  error
}

// Start starts a server, waits until it is ready, and kills it at the end of the test.
// A failed test shows the end of the server's output.
func Start(t *testing.T, spec Spec) *Process {
	t.Helper()
	p := &Process{spec: spec, log: filepath.Join(t.TempDir(), spec.Name+".log")}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Errorf("stop %s: %v", spec.Name, err)
		}
		if t.Failed() {
			t.Logf("the end of what %s wrote:\n%s", spec.Name, p.Output())
		}
	})
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// Restart kills the server if it runs, starts it, and waits until it is ready.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Kill(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := p.spawn(); err != nil {
		return fmt.Errorf("start %s: %w", p.spec.Name, err)
	}
	for {
		err := p.spec.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("%s ended before it was ready: %w", p.spec.Name, p.exit())
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready within %s: %w", p.spec.Name, startTimeout, err)
		case <-time.After(readyPoll):
		}
	}
}

// spawn starts the process in a goroutine that keeps its thread until the process ends:
// the kernel kills the process with the thread that started it, however this program
// ends.
func (p *Process) spawn() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command(p.spec.Path, p.spec.Args...) //nolint:noctx // It outlives the call; Kill ends it.
	cmd.Dir, cmd.Env = p.spec.Dir, append(os.Environ(), p.spec.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		err = errors.Join(cmd.Wait(), log.Close())
		p.mu.Lock()
		p.end = err
		p.mu.Unlock()
		close(done)
	}()
	if err := <-started; err != nil {
		return errors.Join(err, log.Close())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.done, p.end = cmd, done, nil
	return nil
}

// Done is closed when the process has ended. Call it after Start.
func (p *Process) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// PID is the process ID of the last start.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

func (p *Process) exit() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end
}

// Signal sends a signal only to the process itself.
func (p *Process) Signal(signal syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Signal(signal)
}

// Hang suspends the process until Resume, and returns when all its threads have stopped:
// the signal itself is only a request, and a server might still answer a call made right
// after it.
func (p *Process) Hang() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.PID(), nil, unix.WSTOPPED, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Resume continues a process that hangs.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Kill ends the process, and what it started, with SIGKILL, and returns when it is
// gone. It is not an error if the process has ended or never started.
func (p *Process) Kill() error {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	default:
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s (pid %d): %w", p.spec.Name, cmd.Process.Pid, err)
	}
	<-done
	return nil
}

// Output is the end of what the process wrote, over all its starts.
func (p *Process) Output() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return lastLines(string(data), shownLines)
}

// Fetch returns the path of something that get downloads or builds the first time.
func Fetch(t *testing.T, get func(ctx context.Context) (string, error)) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fetchTimeout)
	defer cancel()
	path, err := get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// debianPrograms are the directories of DebianProgram by package: apt takes seconds to
// resolve a package's dependencies.
var debianPrograms sync.Map

// DebianProgram returns the directory with the programs of a Debian package.
func DebianProgram(t *testing.T, name string) string {
	t.Helper()
	folder, ok := debianPrograms.Load(name)
	if !ok {
		folder = Fetch(t, func(ctx context.Context) (string, error) { return fetch.DebianProgram(ctx, name) })
		debianPrograms.Store(name, folder)
	}
	return folder.(string)
}

// Java returns the arguments with which Java runs the only source file in the directory,
// with the libraries of its pom.xml.
func Java(t *testing.T, name, project string) []string {
	t.Helper()
	jars := Fetch(t, func(ctx context.Context) (string, error) { return fetch.Maven(ctx, name, project) })
	sources, err := filepath.Glob(filepath.Join(project, "*.java"))
	if err != nil || len(sources) != 1 {
		t.Fatalf("%s has the sources %v, %v; want one", project, sources, err)
	}
	source, err := filepath.Abs(sources[0])
	if err != nil {
		t.Fatal(err)
	}
	return []string{"-cp", jars + "/*", source}
}

// FreePorts returns n ports of 127.0.0.1 that are free for both TCP and UDP. They are
// held until all are known, so that no two are the same.
func FreePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for range 100 {
		if len(ports) == n {
			return ports
		}
		tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tcp.Close() }()
		udp, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", tcp.Addr().String())
		if err != nil {
			continue // Taken for UDP: try another one.
		}
		defer func() { _ = udp.Close() }()
		ports = append(ports, tcp.Addr().(*net.TCPAddr).Port)
	}
	t.Fatalf("%d of %d ports are free for both TCP and UDP", len(ports), n)
	return nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
