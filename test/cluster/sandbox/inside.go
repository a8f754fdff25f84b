// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stageEnv is the environment variable with the role of a process of Run.
const (
	stageEnv  = "USHER_SANDBOX"
	stageInit = "init"
	stageMain = "main"
	dirEnv    = "USHER_SANDBOX_DIR"
	groupEnv  = "USHER_SANDBOX_CGROUP"
)

// exitBroken is the exit code of a process 1 that could not do its work.
const exitBroken = 125

// Place describes its sandbox to a program inside.
type Place struct {
	// Dir is the directory that Run was given.
	Dir string
	// Cgroup is the sandbox's control group, as a path below each hierarchy's
	// root, for instance "/usher-123".
	Cgroup string
}

// Enter must be called first in main. In process 1 of a sandbox it never returns. In a
// program that runs inside it returns the place, elsewhere nil.
func Enter() *Place {
	place := &Place{Dir: os.Getenv(dirEnv), Cgroup: os.Getenv(groupEnv)}
	switch os.Getenv(stageEnv) {
	case stageInit:
		code, err := place.beInit()
		if err != nil {
			fmt.Fprintln(os.Stderr, "sandbox:", err)
			code = exitBroken
		}
		os.Exit(code)
	case stageMain:
		return place
	}
	return nil
}

// beInit is process 1: it mounts, runs the program and reaps until that has ended.
func (p *Place) beInit() (code int, err error) {
	// Process 1 gets no signal that it does not handle; the terminal's Ctrl-C reaches
	// the program directly.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM)
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
	if err := p.mount(); err != nil {
		return 0, err
	}
	if err := os.Setenv(stageEnv, stageMain); err != nil {
		return 0, err
	}
	// Not through os/exec: that would wait for the program concurrently with the loop
	// below, which has to wait for any child.
	program, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return 0, fmt.Errorf("start the program inside: %w", err)
	}
	go func() {
		for range signals {
			_ = syscall.Kill(program, syscall.SIGTERM) // It may already have ended.
		}
	}()
	code, err = reap(program)
	return code, errors.Join(err, p.endAll())
}

// endAll ends all other processes inside. Whoever freezes a container for a moment, and is killed then, leaves it frozen:
// it does not end before it is thawed, and neither does process 1.
func (p *Place) endAll() error {
	trees, err := hierarchies()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(removeTime); time.Now().Before(deadline); <-time.After(removeEvery) {
		_ = syscall.Kill(-1, syscall.SIGKILL) // There may be none.
		for _, h := range trees {
			if err := thawTree(filepath.Join(h.root, p.Cgroup)); err != nil {
				return err
			}
		}
		for pid := 1; pid > 0; {
			if pid, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil); errors.Is(err, syscall.ECHILD) {
				return nil
			}
		}
	}
	return errors.New("processes of the sandbox do not end")
}

// reap waits for every child, own and adopted, until the program has ended.
func reap(program int) (code int, err error) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the program inside: %w", err)
		case pid == program && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == program && status.Exited():
			return status.ExitStatus(), nil
		}
	}
}

// mount makes the mounts private and hides what the node would write to.
func (p *Place) mount() error {
	for _, step := range []func() error{
		func() error { return mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "") },
		func() error { return mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755") },
		p.overlayVarLib, p.bindLogs, p.maskTunables,
		// Containers' volumes with mount propagation need a shared root.
		func() error { return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func mount(source, target, kind string, flags uintptr, options string) error {
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// overlayVarLib keeps /var/lib readable, in case a checkout or a cache is there, and
// redirects all writes to the sandbox's directory.
func (p *Place) overlayVarLib() error {
	upper, work := filepath.Join(p.Dir, "varlib"), filepath.Join(p.Dir, "varlib.work")
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=/var/lib,upperdir=%s,workdir=%s", upper, work)
	if err := unix.Mount("overlay", "/var/lib", "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay on /var/lib (the kernel needs overlayfs, and %s must not be on one; set TMPDIR to choose another folder): %w", p.Dir, err)
	}
	return nil
}

func (p *Place) bindLogs() error {
	logs := filepath.Join(p.Dir, "varlog")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	return mount(logs, "/var/log", "", unix.MS_BIND, "")
}

// tunables returns the sysctls that a kubelet sets and no namespace isolates, with the values that it
// expects.
func tunables() map[string]string {
	return map[string]string{
		"vm/overcommit_memory":      "1",
		"vm/panic_on_oom":           "0",
		"kernel/panic":              "10",
		"kernel/panic_on_oops":      "1",
		"kernel/keys/root_maxkeys":  "1000000",
		"kernel/keys/root_maxbytes": "25000000",
	}
}

// maskTunables mounts files over the machine's tunables.
func (p *Place) maskTunables() error {
	for name, value := range tunables() {
		target := filepath.Join("/proc/sys", name)
		if _, err := os.Stat(target); errors.Is(err, os.ErrNotExist) {
			continue // The kernel lacks the file.
		}
		file := filepath.Join(p.Dir, "tunables", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(value+"\n"), 0o644)); err != nil {
			return fmt.Errorf("prepare %s: %w", target, err)
		}
		if err := mount(file, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}
