// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// endGrace is how long the program inside may take to end when asked to.
const endGrace = 45 * time.Second

// check reports what is missing on this machine, with a sentence for each on what to
// do; nil if a sandbox can be created.
func check() error {
	if os.Geteuid() != 0 {
		return errors.New("a real node needs root, for namespaces, mounts and control groups: run it as root (it changes nothing outside its own namespaces)")
	}
	trees, err := hierarchies()
	if err != nil {
		return err
	}
	probe := groupPrefix + "probe"
	if err := errors.Join(makeGroup(trees, probe), removeGroup(trees, probe)); err != nil {
		return fmt.Errorf("a real node needs control groups that it may write (in a container: run it with --privileged --cgroupns=host): %w", err)
	}
	return nil
}

// runInside runs this program inside, with other arguments, and returns its exit code.
// When ctx ends, the program gets SIGTERM and, if it does not end in time, SIGKILL. When
// it returns, no process, mount or control group of the sandbox is left; otherwise the
// error says so.
func (s Session) runInside(ctx context.Context, dir string) (code int, err error) {
	trees, err := hierarchies()
	if err != nil {
		return 0, err
	}
	for _, name := range staleGroups(trees) {
		if err := removeGroup(trees, name); err != nil {
			return 0, err
		}
	}
	group := fmt.Sprintf("%s%d", groupPrefix, os.Getpid())
	defer func() { err = errors.Join(err, removeGroup(trees, group)) }()
	if err := makeGroup(trees, group); err != nil {
		return 0, err
	}
	// Pdeathsig fires when the forking thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", s.Args...)
	cmd.Env = append(os.Environ(), stageEnv+"="+stageInit, dirEnv+"="+dir, groupEnv+"=/"+group)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, s.Out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL,
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endGrace
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make the namespaces: %w", err)
	}
	spaces, spacesErr := namespacesOf(cmd.Process.Pid)
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) || (err != nil && ctx.Err() != nil) {
		err = nil // The program's own exit code reports it.
	}
	return cmd.ProcessState.ExitCode(), errors.Join(err, spacesErr, leftovers(spaces, dir))
}

// namespacesOf names the namespaces of a process that differ from this one's.
func namespacesOf(pid int) ([]string, error) {
	var names []string
	for _, kind := range []string{"mnt", "net", "pid"} {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			return nil, fmt.Errorf("read a namespace: %w", err)
		}
		ours, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return nil, fmt.Errorf("read a namespace: %w", err)
		}
		if theirs == ours {
			return nil, fmt.Errorf("the process inside has no %s namespace of its own", kind)
		}
		names = append(names, theirs)
	}
	return names, nil
}

// leftovers reports the remains of a sandbox: processes in its namespaces, and mounts outside it that
// come from its directory.
func leftovers(spaces []string, dir string) error {
	var errs []error
	links, _ := filepath.Glob("/proc/[0-9]*/ns/*") // The pattern is well-formed.
	for _, link := range links {
		space, err := os.Readlink(link)
		if err != nil {
			continue // It has ended.
		}
		if slices.Contains(spaces, space) {
			errs = append(errs, fmt.Errorf("a process of the sandbox is left: %s", filepath.Dir(filepath.Dir(link))))
		}
	}
	mounts, err := procfs.GetMounts()
	for _, m := range mounts {
		if text := fmt.Sprint(*m); strings.Contains(text, dir) {
			errs = append(errs, fmt.Errorf("a mount of the sandbox is left: %s", text))
		}
	}
	return errors.Join(append(errs, err)...)
}
