// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errStopping means that the runtime is closed.
var errStopping = errors.New("the node agent is stopping")

// ImageLookup finds the local program for an image. It gets the image's full name,
// "registry/web:latest" for "registry/web". The arguments are the image's CMD, which a
// container's args replace.
type ImageLookup func(image string) (program string, args, env []string, ok bool)

// ProcessOptions configures the process runtime. Images and LogDir must be set.
type ProcessOptions struct {
	// Images finds the programs, e.g. ProgramDir's result.
	Images ImageLookup
	// LogDir receives the output of containers, in
	// NAMESPACE_POD_UID/CONTAINER/RESTARTS.log. The logs of a container's two latest
	// instances are kept, even after the Pod's end.
	LogDir string
	// Aliases maps images to images whose digest they share.
	Aliases map[string]string
	// AddressSeed decides where in 127.0.0.0/8 the Pods' addresses start; 0 derives it
	// from LogDir.
	AddressSeed uint32
}

// ProgramDir returns an ImageLookup for a directory of programs: the image's name is
// the name of an executable file, its tag the program's version. tags are the existing
// tags; none means that any tag exists. A digest stands for the tag it was derived
// from.
func ProgramDir(dir string, tags ...string) ImageLookup {
	return func(image string) (string, []string, []string, bool) {
		ref, err := ParseImage(image)
		if err != nil {
			return "", nil, nil, false
		}
		known := len(tags) == 0 && ref.Tag != ""
		for _, tag := range tags {
			of := ImageRef{Repository: ref.Repository, Tag: tag}
			if tag == ref.Tag || ref.Tag == "" && strings.HasSuffix(imageAliases(nil).id(of), "@"+ref.Digest) {
				ref.Tag, known = tag, true
			}
		}
		program := filepath.Join(dir, ref.Name())
		info, err := os.Stat(program)
		if !known || err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			return "", nil, nil, false
		}
		return program, nil, []string{"APP_VERSION=" + ref.Tag}, true
	}
}

// processRuntime runs every container as a process of this machine.
type processRuntime struct {
	options   ProcessOptions
	aliases   imageAliases
	addresses *addressPool
	forks     chan func()
	ended     chan struct{} // closed when nothing more may be forked

	mu      sync.Mutex
	closed  bool
	running map[*processInstance]struct{}
	execs   int       // commands running beside instances
	idle    sync.Cond // signalled when an instance or a command ends
	once    sync.Once // closes ended
}

// NewProcessRuntime creates the runtime in which every container is a process. No
// container process outlives the process that calls it. Its error names the invalid
// option.
func NewProcessRuntime(options ProcessOptions) (Runtime, error) {
	if options.Images == nil {
		return nil, errors.New("ProcessOptions.Images is nil: set it to ProgramDir of a folder of programs")
	}
	if options.LogDir == "" {
		return nil, errors.New("ProcessOptions.LogDir is empty: name a folder for the containers' output")
	}
	aliases, err := newImageAliases(options.Aliases)
	if err != nil {
		return nil, fmt.Errorf("ProcessOptions.Aliases: %w", err)
	}
	if err := os.MkdirAll(options.LogDir, 0o755); err != nil {
		return nil, fmt.Errorf("ProcessOptions.LogDir: %w", err)
	}
	if options.AddressSeed == 0 {
		options.AddressSeed = hash32(options.LogDir)
	}
	r := &processRuntime{
		options: options, aliases: aliases, addresses: newAddressPool(options.AddressSeed),
		forks: make(chan func()), ended: make(chan struct{}), running: map[*processInstance]struct{}{},
	}
	r.idle.L = &r.mu
	go r.fork()
	return r, nil
}

// fork starts all processes from one permanent thread: a process gets its parent-death
// signal when its parent thread ends, not only when its parent process does.
func (r *processRuntime) fork() {
	goruntime.LockOSThread() // for good: the thread ends with the goroutine
	for {
		select {
		case start := <-r.forks:
			start()
		case <-r.ended:
			return
		}
	}
}

// run starts a command on the forking thread.
func (r *processRuntime) run(command *exec.Cmd) error {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	result := make(chan error, 1)
	select {
	case r.forks <- func() { result <- command.Start() }:
		return <-result
	case <-r.ended:
		return errStopping
	}
}

func (r *processRuntime) Traits() Traits { return Traits{Name: "process", Real: true} }

func (r *processRuntime) HostIP(int) string { return "127.0.0.1" }

func (r *processRuntime) Delay(Delay, *corev1.Pod) time.Duration { return 0 }

func (r *processRuntime) Address(pod *corev1.Pod) (string, error) { return r.addresses.take(pod) }

func (r *processRuntime) Release(pod types.UID) { r.addresses.release(pod) }

func (r *processRuntime) Resolve(image string) (string, error) {
	ref, err := ParseImage(image)
	if err != nil {
		return "", err
	}
	if _, _, _, ok := r.options.Images(ref.String()); !ok {
		return "", &PullError{
			Reason:  ReasonErrImagePull,
			Message: fmt.Sprintf("no local program stands for image %q: build %s, or use a tag that exists", image, ref.Name()),
		}
	}
	return r.aliases.id(ref), nil
}

// Adopt never finds anything: no process outlives its agent.
func (r *processRuntime) Adopt(string) (Instance, bool) { return nil, false }

// Start starts a process. Its error describes what is wrong with the image, the command
// or the log directory.
func (r *processRuntime) Start(cfg ContainerConfig) (Instance, error) {
	ref, err := ParseImage(cfg.Container.Image)
	if err != nil {
		return nil, err
	}
	program, args, env, ok := r.options.Images(ref.String())
	if !ok {
		return nil, fmt.Errorf("the program of image %q is gone", cfg.Container.Image)
	}
	log, err := r.openLog(&cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor
	base := append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "APP_VERSION=" + ref.Tag}, env...)
	i := &processInstance{
		runtime: r, id: newContainerID(r), program: program, dir: filepath.Dir(log.Name()), log: log.Name(),
		env: containerEnv(&cfg, base), exited: cfg.Exited,
	}
	argv := append([]string{program}, args...)
	lookup := newEnvironment(i.env).lookup
	if len(cfg.Container.Command) > 0 {
		argv = expandAll(cfg.Container.Command, lookup)
		args = nil
	}
	if len(cfg.Container.Args) > 0 {
		argv = append(argv[:len(argv)-len(args)], expandAll(cfg.Container.Args, lookup)...)
	}
	command := i.command(context.Background(), argv)
	command.Stdout, command.Stderr = log, log
	return i, r.launch(i, command)
}

// launch starts the instance's process unless the runtime is closed.
func (r *processRuntime) launch(i *processInstance, command *exec.Cmd) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errStopping
	}
	if err := r.run(command); err != nil {
		return fmt.Errorf("start %s: %w", command.Args[0], err)
	}
	i.pid = command.Process.Pid
	r.running[i] = struct{}{}
	go i.wait(command)
	return nil
}

// openLog opens the log of a container's next instance and removes all but the previous
// one.
func (r *processRuntime) openLog(cfg *ContainerConfig) (*os.File, error) {
	dir := filepath.Join(r.options.LogDir,
		fmt.Sprintf("%s_%s_%s", cfg.Pod.Namespace, cfg.Pod.Name, cfg.Pod.UID), cfg.Container.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("log folder: %w", err)
	}
	name := func(attempt int32) string { return filepath.Join(dir, fmt.Sprintf("%d.log", attempt)) }
	if err := os.Remove(name(cfg.Attempt - 2)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove an old log: %w", err)
	}
	log, err := os.Create(name(cfg.Attempt))
	if err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	return log, nil
}

// Close kills all processes and waits until they are gone. Commands that run beside
// containers end with their contexts.
func (r *processRuntime) Close(ctx context.Context) error {
	defer context.AfterFunc(ctx, r.idle.Broadcast)()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for i := range r.running {
		i.Kill()
	}
	for len(r.running)+r.execs > 0 && ctx.Err() == nil {
		r.idle.Wait()
	}
	if left := len(r.running) + r.execs; left > 0 {
		return fmt.Errorf("%d processes have not ended: %w", left, context.Cause(ctx))
	}
	r.addresses.close()
	r.once.Do(func() { close(r.ended) })
	return nil
}

// beginExec counts a command that runs beside an instance, until end is called.
func (r *processRuntime) beginExec() (end func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errStopping
	}
	r.execs++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.execs--
		r.idle.Broadcast()
	}, nil
}

// processInstance is a container's process and its descendants.
type processInstance struct {
	runtime     *processRuntime
	id, program string
	dir, log    string
	env         []string
	pid         int
	exited      func()

	mu   sync.Mutex // also prevents signals to a PID that is no longer ours
	exit *Exit
}

// command builds a command that runs in the container.
func (i *processInstance) command(ctx context.Context, argv []string) *exec.Cmd {
	command := exec.CommandContext(ctx, i.resolve(argv[0]), argv[1:]...)
	command.Args[0] = argv[0]
	command.Env, command.Dir = i.env, i.dir
	return command
}

// resolve finds a command's program: the image's own, whatever directory the command
// puts it in, or one of the machine's.
func (i *processInstance) resolve(name string) string {
	if filepath.Base(name) == filepath.Base(i.program) {
		return i.program
	}
	return name
}

// wait waits for the end of the process.
func (i *processInstance) wait(command *exec.Cmd) {
	awaitExit(i.pid)
	i.mu.Lock()
	// The process is dead but not yet reaped, so its group ID cannot be reused.
	_ = syscall.Kill(-i.pid, syscall.SIGKILL) // what it left behind, if anything
	_ = command.Wait()                        // its error adds nothing to the state
	i.exit = &Exit{Code: exitCode(command.ProcessState), At: time.Now()}
	i.mu.Unlock()
	i.runtime.mu.Lock()
	delete(i.runtime.running, i)
	i.runtime.idle.Broadcast()
	i.runtime.mu.Unlock()
	i.exited()
}

// awaitExit waits for the end of a child without reaping it.
func awaitExit(pid int) {
	for {
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// exitCode is the exit code that a container runtime reports.
func exitCode(state *os.ProcessState) int32 {
	if state == nil {
		return 255 // unknown
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int32(status.Signal())
	}
	return int32(state.ExitCode())
}

func (i *processInstance) ID() string { return i.id }

func (i *processInstance) Exit() (Exit, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.exit == nil {
		return Exit{}, false
	}
	return *i.exit, true
}

// Terminate signals only the container's first process, as a container runtime does.
func (i *processInstance) Terminate() { i.signal(i.pid, syscall.SIGTERM) }

func (i *processInstance) Kill() { i.signal(-i.pid, syscall.SIGKILL) }

func (i *processInstance) signal(pid int, signal syscall.Signal) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.exit == nil {
		_ = syscall.Kill(pid, signal) // it may have ended just now
	}
}

func (i *processInstance) Exec(ctx context.Context, argv []string) error {
	if len(argv) == 0 {
		return errors.New("exec: the command is empty")
	}
	command := i.command(ctx, argv)
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second
	end, err := i.runtime.beginExec()
	if err != nil {
		return fmt.Errorf("exec %s: %w", argv[0], err)
	}
	defer end()
	if err := i.runtime.run(command); err != nil {
		return fmt.Errorf("exec %s: %w", argv[0], err)
	}
	if err := command.Wait(); err != nil {
		return fmt.Errorf("exec %s: %w", argv[0], err)
	}
	return nil
}

func (i *processInstance) Describe() Description {
	return Description{PID: i.pid, LogFile: i.log}
}
