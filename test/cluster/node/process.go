// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/test/cluster/process"
)

// defaultPort is the port of a container that names none.
const defaultPort = 8080

// ImageLookup finds the local program for an image, and the image's environment. Its
// error means that there is no such image.
type ImageLookup func(image string) (program string, env []string, err error)

// ProcessOptions configures the process runtime. Both fields must be set.
type ProcessOptions struct {
	// Images finds the programs, e.g. ProgramDir's result.
	Images ImageLookup
	// LogDir receives the output of containers, in
	// NAMESPACE_POD_UID/CONTAINER/RESTARTS.log.
	LogDir string
}

// ProgramDir returns an ImageLookup for a directory of programs: the image's name is
// the name of an executable file, its tag the program's version. tags are the existing
// tags; none means that any tag exists.
func ProgramDir(dir string, tags ...string) ImageLookup {
	return func(image string) (string, []string, error) {
		tag, err := name.NewTag(image)
		if err != nil {
			return "", nil, err
		}
		program := filepath.Join(dir, filepath.Base(tag.RepositoryStr()))
		if _, err := os.Stat(program); err != nil || len(tags) > 0 && !slices.Contains(tags, tag.TagStr()) {
			return "", nil, fmt.Errorf("no local program stands for image %q: build %s, or use one of the tags %q", image, program, tags)
		}
		return program, []string{"APP_VERSION=" + tag.TagStr()}, nil
	}
}

// processRuntime runs every container as a process of this machine.
type processRuntime struct {
	options   ProcessOptions
	addresses *addressPool
	spawner   *process.Spawner

	mu      sync.Mutex
	running map[*processInstance]struct{}
}

// NewProcessRuntime creates the runtime in which every container is a process. No
// container process outlives the process that calls it.
func NewProcessRuntime(options ProcessOptions) (Runtime, error) {
	if options.Images == nil || options.LogDir == "" {
		return nil, errors.New("ProcessOptions.Images or LogDir is not set")
	}
	return &processRuntime{
		options: options, addresses: newAddressPool(hash32(options.LogDir)), spawner: process.NewSpawner(),
		running: map[*processInstance]struct{}{},
	}, nil
}

func (r *processRuntime) Traits() Traits { return Traits{Name: "process", Real: true} }

func (r *processRuntime) Address(pod types.UID) (string, error) { return r.addresses.take(pod) }

func (r *processRuntime) Release(pod types.UID) { r.addresses.release(pod) }

func (r *processRuntime) Pull(image string) (string, error) {
	if _, _, err := r.options.Images(image); err != nil {
		return "", err
	}
	return imageID(image)
}

// Start starts a process. Its error describes what is wrong with the image, the command
// or the log directory.
func (r *processRuntime) Start(cfg ContainerConfig) (Instance, error) {
	program, env, err := r.options.Images(cfg.Container.Image)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(r.options.LogDir, fmt.Sprintf("%s_%s_%s", cfg.Pod.Namespace, cfg.Pod.Name, cfg.Pod.UID), cfg.Container.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("log directory: %w", err)
	}
	log, err := os.Create(filepath.Join(dir, fmt.Sprintf("%d.log", cfg.Attempt)))
	if err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor
	argv := append(slices.Clone(cfg.Container.Command), cfg.Container.Args...)
	if len(cfg.Container.Command) == 0 {
		argv = append([]string{program}, argv...)
	}
	// The image's own program is found whatever directory the command puts it in.
	path := argv[0]
	if filepath.Base(path) == filepath.Base(program) {
		path = program
	}
	command := exec.Command(path, argv[1:]...) //nolint:noctx // it outlives the call; its Pod ends it
	command.Dir, command.Env, command.Stdout, command.Stderr = dir, containerEnv(&cfg, env), log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// Under the lock, so that Close sees every process.
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.spawner.Do(command.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	i := &processInstance{runtime: r, id: newContainerID(r), process: command.Process}
	r.running[i] = struct{}{}
	go i.wait(command, cfg.Exited)
	return i, nil
}

// containerEnv is the environment of a container. Of a repeated variable, the last one
// counts.
func containerEnv(cfg *ContainerConfig, image []string) []string {
	port := int32(defaultPort)
	if ports := cfg.Container.Ports; len(ports) > 0 {
		port = ports[0].ContainerPort
	}
	env := append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, image...)
	env = append(env, "POD_IP="+cfg.IP, "POD_NAME="+cfg.Pod.Name, "POD_NAMESPACE="+cfg.Pod.Namespace,
		"NODE_NAME="+cfg.Pod.Spec.NodeName, "PORT="+strconv.Itoa(int(port)))
	for _, variable := range cfg.Container.Env {
		if variable.ValueFrom == nil {
			env = append(env, variable.Name+"="+variable.Value)
		}
	}
	return env
}

// Close kills all processes and waits until they are gone.
func (r *processRuntime) Close(ctx context.Context) error {
	r.mu.Lock()
	r.spawner.Close()
	var left []*processInstance
	for i := range r.running {
		i.Kill()
		left = append(left, i)
	}
	r.mu.Unlock()
	for _, i := range left {
		for i.Exit() == nil {
			select {
			case <-ctx.Done():
				return fmt.Errorf("process %d has not ended: %w", i.process.Pid, context.Cause(ctx))
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}

// processInstance is a container's process and its descendants.
type processInstance struct {
	runtime *processRuntime
	id      string
	process *os.Process

	mu   sync.Mutex // also prevents signals to a group that is no longer ours
	exit *Exit
}

// wait waits for the end of the process.
func (i *processInstance) wait(command *exec.Cmd, exited func()) {
	_ = command.Wait() // its error adds nothing to the state
	code := int32(command.ProcessState.ExitCode())
	if status, ok := command.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int32(status.Signal())
	}
	i.mu.Lock()
	_ = syscall.Kill(-i.process.Pid, syscall.SIGKILL) // what it left behind, if anything
	i.exit = &Exit{Code: code, At: time.Now()}
	i.mu.Unlock()
	i.runtime.mu.Lock()
	delete(i.runtime.running, i)
	i.runtime.mu.Unlock()
	exited()
}

func (i *processInstance) ID() string { return i.id }

func (i *processInstance) Exit() *Exit {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.exit
}

// Terminate signals only the container's first process, as a container runtime does.
func (i *processInstance) Terminate() { _ = i.process.Signal(syscall.SIGTERM) } // it may have ended just now

func (i *processInstance) Kill() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.exit == nil {
		_ = syscall.Kill(-i.process.Pid, syscall.SIGKILL) // it may have ended just now
	}
}

const (
	// reservationPort is the UDP port whose open socket reserves a loopback address
	// among the agents of one machine.
	reservationPort = 7797
	// addressAttempts bounds the search for a free address.
	addressAttempts = 64
)

// addressPool gives each Pod its own address in 127.0.0.0/8, where Linux lets everybody
// listen on any address.
type addressPool struct {
	mu    sync.Mutex
	last  netip.Addr
	taken map[types.UID]net.PacketConn
}

// newAddressPool creates a pool that assigns addresses from 127.a.b.1 on, with a and b
// taken from the seed, so that two clusters seldom collide.
func newAddressPool(seed uint32) *addressPool {
	start := netip.AddrFrom4([4]byte{127, byte(16 + seed%200), byte(seed >> 8), 0})
	return &addressPool{last: start, taken: map[types.UID]net.PacketConn{}}
}

// take returns an address that no other Pod on this machine has.
func (a *addressPool) take(pod types.UID) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	for range addressAttempts {
		a.last = a.last.Next()
		var config net.ListenConfig
		var socket net.PacketConn
		socket, err = config.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(a.last, reservationPort).String())
		if err == nil {
			a.taken[pod] = socket
			return a.last.String(), nil
		}
	}
	return "", fmt.Errorf("no free address after %d tries, last %s: %w", addressAttempts, a.last, err)
}

func (a *addressPool) release(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if socket := a.taken[pod]; socket != nil {
		_ = socket.Close() // nothing to be done about an error
		delete(a.taken, pod)
	}
}
