// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/test/cluster/process"
)

// defaultPort is the port of a container that names none.
const defaultPort = 8080

// ImageLookup finds the local program for an image, and the image's environment. Its
// error means that there is no such image.
type ImageLookup func(image string) (program string, env []string, err error)

// ProcessOptions configures the process runtime.
type ProcessOptions struct {
	// Images finds the programs, e.g. ProgramDir's result.
	Images ImageLookup
	// LogDir receives the output of containers, in
	// NAMESPACE_POD_UID/CONTAINER/RESTARTS.log.
	LogDir string
	// Network has the addresses of Pods, all of this machine: a prefix of IPv4 with at most 16 bits. Default:
	// 127.0.0.0/8.
	Network netip.Prefix
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

	mu      sync.Mutex
	closed  bool
	started []*process.Process
}

// NewProcessRuntime creates the runtime in which every container is a process. No
// container process outlives the process that calls it.
func NewProcessRuntime(options ProcessOptions) Runtime {
	return &processRuntime{options: options, addresses: newAddressPool(options.Network, hash32(options.LogDir))}
}

func (r *processRuntime) Traits() Traits { return Traits{Name: "process", Real: true} }

func (r *processRuntime) Address(pod types.UID) (string, error) { return r.addresses.take(pod) }

func (r *processRuntime) Release(pod types.UID) { r.addresses.release(pod) }

func (r *processRuntime) Pull(_, image string) (string, error) {
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
	argv := append(slices.Clone(cfg.Container.Command), cfg.Container.Args...)
	if len(cfg.Container.Command) == 0 {
		argv = append([]string{program}, argv...)
	}
	// The image's own program is found in every directory that the command names.
	path := argv[0]
	if filepath.Base(path) == filepath.Base(program) {
		path = program
	}
	dir := filepath.Join(r.options.LogDir, fmt.Sprintf("%s_%s_%s", cfg.Pod.Namespace, cfg.Pod.Name, cfg.Pod.UID), cfg.Container.Name)
	// Under the lock, so that Close sees every process.
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errors.New("the runtime is closed")
	}
	p, err := process.Start(process.Spec{
		Name: cfg.Container.Name, Path: path, Args: argv[1:], Dir: dir, Env: containerEnv(&cfg, env),
		Log: filepath.Join(dir, fmt.Sprintf("%d.log", cfg.Attempt)),
	})
	if err != nil {
		return nil, err
	}
	r.started = append(r.started, p)
	go func() {
		<-p.Done()
		cfg.Exited()
	}()
	return &processInstance{id: newContainerID(r), process: p}, nil
}

// containerEnv returns the environment of a container. Of a repeated variable, the last one counts.
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
	defer r.mu.Unlock()
	r.closed = true
	for _, p := range r.started {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			return err
		}
	}
	for _, p := range r.started {
		select {
		case <-p.Done():
		case <-ctx.Done():
			return fmt.Errorf("process %d has not ended: %w", p.PID(), context.Cause(ctx))
		}
	}
	return nil
}

// processInstance is a container's process and its descendants.
type processInstance struct {
	id      string
	process *process.Process
}

func (i *processInstance) ID() string { return i.id }

func (i *processInstance) Exit() *Exit {
	state, at := i.process.Ended()
	if state == nil {
		return nil
	}
	code := int32(state.ExitCode())
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int32(status.Signal())
	}
	return &Exit{Code: code, At: at}
}

// Terminate signals only the container's first process, as a container runtime does.
func (i *processInstance) Terminate() { _ = i.process.Signal(syscall.SIGTERM) } // it may have ended just now

func (i *processInstance) Kill() { _ = i.process.Signal(syscall.SIGKILL) } // it may have ended just now

const (
	// reservationPort is the UDP port whose open socket reserves a loopback address
	// among the agents of one machine.
	reservationPort = 7797
	// addressAttempts bounds the search for a free address.
	addressAttempts = 64
)

// addressPool gives each Pod its own address.
type addressPool struct {
	mu    sync.Mutex
	last  netip.Addr
	taken map[types.UID]net.PacketConn
}

// loopbacks are the addresses on which Linux lets everybody listen.
var loopbacks = netip.MustParsePrefix("127.0.0.0/8")

// newAddressPool creates a pool that assigns addresses of a network, those of loopback if it has none. The seed says
// where it begins, so that two clusters seldom collide.
func newAddressPool(network netip.Prefix, seed uint32) *addressPool {
	if !network.IsValid() {
		network = loopbacks
	}
	start := network.Masked().Addr().As4()
	if network.Bits() <= 8 {
		start[1] = byte(16 + seed%200)
	}
	start[2] = byte(seed >> 8)
	return &addressPool{last: netip.AddrFrom4(start), taken: map[types.UID]net.PacketConn{}}
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
		_ = socket.Close() // an error is harmless
		delete(a.taken, pod)
	}
}
