// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

const (
	// A group's name is groupPrefix and the ID of the process that called Run.
	groupPrefix = "usher-sandbox-"
	// removeTime bounds the removal: the kernel releases a group shortly after its last
	// process has ended.
	removeTime  = 10 * time.Second
	removeEvery = 20 * time.Millisecond
)

// hierarchy is a mounted tree of control groups.
type hierarchy struct {
	root string
	// cpuset reports whether it is version 1's tree of processor sets.
	cpuset bool
}

// hierarchies finds all mounted trees: version 2, version 1, or both where container
// runtimes use both.
func hierarchies() ([]hierarchy, error) {
	mounts, err := procfs.GetMounts()
	if err != nil {
		return nil, err
	}
	var found []hierarchy
	for _, m := range mounts {
		if m.FSType == "cgroup" || m.FSType == "cgroup2" {
			_, cpuset := m.SuperOptions["cpuset"]
			found = append(found, hierarchy{root: m.MountPoint, cpuset: cpuset})
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no control groups are mounted: mount them at /sys/fs/cgroup")
	}
	return found, nil
}

// MakeGroup makes a control group below a sandbox's. It is removed with the sandbox.
func MakeGroup(path string) error {
	trees, err := hierarchies()
	if err != nil {
		return err
	}
	return makeGroup(trees, path)
}

// KillGroup ends all processes in a control group below a sandbox's, and in the groups in it. It returns when it finds
// no more of them.
func KillGroup(path string) error {
	trees, err := hierarchies()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(removeTime)
	for {
		found := false
		for _, h := range trees {
			more, err := killTree(filepath.Join(h.root, path))
			if err != nil {
				return err
			}
			found = found || more
			if err := thawTree(filepath.Join(h.root, path)); err != nil {
				return err
			}
		}
		if !found {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes of the control group %s do not end", path)
		}
		<-time.After(removeEvery)
	}
}

// killTree sends SIGKILL to the processes of the groups in a folder; found reports whether there are some.
func killTree(folder string) (found bool, err error) {
	err = filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // The group is gone.
		case err != nil || entry.Name() != "cgroup.procs":
			return err
		}
		more, err := killAll(name)
		found = found || more
		return err
	})
	return found, err
}

// thawTree lets frozen groups of a folder go on: a frozen process does not end.
func thawTree(folder string) error {
	return filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // The group is gone.
		}
		if err != nil {
			return err
		}
		thawed, freezes := map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"}[entry.Name()]
		if !freezes {
			return nil
		}
		if err := os.WriteFile(name, []byte(thawed), 0o644); err != nil && !gone(err) {
			return fmt.Errorf("thaw a control group: %w", err)
		}
		return nil
	})
}

// gone reports whether an error means that the group of a file has been removed.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) }

// killAll sends SIGKILL to the processes that a file lists.
func killAll(file string) (found bool, err error) {
	text, err := os.ReadFile(file)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for word := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(word)
		if err != nil || pid <= 0 { // A process outside of this namespace is shown as 0.
			continue
		}
		found = true
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return found, fmt.Errorf("end process %d of %s: %w", pid, file, err)
		}
	}
	return found, nil
}

// makeGroup makes a group in every tree.
func makeGroup(trees []hierarchy, name string) error {
	for _, h := range trees {
		if err := os.Mkdir(filepath.Join(h.root, name), 0o755); err != nil {
			return fmt.Errorf("make a control group: %w", err)
		}
		if h.cpuset {
			if err := fillCPUSet(h.root, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// fillCPUSet gives a group all processors and memory nodes: an empty set accepts no
// process.
func fillCPUSet(root, name string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		all, err := os.ReadFile(filepath.Join(root, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(root, name, file), all, 0o644)
		}
		if err != nil {
			return fmt.Errorf("make a control group: %w", err)
		}
	}
	return nil
}

// removeGroup removes a group and its descendants from every tree.
func removeGroup(trees []hierarchy, name string) error {
	var errs []error
	for _, h := range trees {
		deadline := time.Now().Add(removeTime)
		err := removeTree(filepath.Join(h.root, name))
		for errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline) {
			<-time.After(removeEvery)
			err = removeTree(filepath.Join(h.root, name))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove a control group: %w", err))
		}
	}
	return errors.Join(errs...)
}

// removeTree removes directories from the leaves up; the kernel removes the files in
// them.
func removeTree(folder string) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(folder, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := syscall.Rmdir(folder); err != nil && !errors.Is(err, syscall.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: folder, Err: err}
	}
	return nil
}

// staleGroups returns the remaining groups of killed runs.
func staleGroups(trees []hierarchy) []string {
	var names []string
	for _, h := range trees {
		found, _ := filepath.Glob(filepath.Join(h.root, groupPrefix+"*")) // The pattern is well-formed.
		for _, path := range found {
			name := filepath.Base(path)
			pid, err := strconv.Atoi(strings.TrimPrefix(name, groupPrefix))
			if err == nil && !alive(pid) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
