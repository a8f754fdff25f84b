// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestHierarchies(t *testing.T) {
	const proc = "22 1 0:20 / /proc rw - proc proc rw\n"
	const one = "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n" +
		"31 25 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
	const two = "29 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	cases := map[string]struct {
		mounts string
		want   []hierarchy
	}{
		"none":   {mounts: proc},
		"broken": {mounts: "a line\n30 25 - cgroup\n"},
		"one":    {mounts: proc + one, want: []hierarchy{{root: "/sys/fs/cgroup/cpu,cpuacct"}, {root: "/sys/fs/cgroup/cpuset", cpuset: true}}},
		"two":    {mounts: proc + two, want: []hierarchy{{root: "/sys/fs/cgroup/unified"}}},
		"both": {mounts: one + two, want: []hierarchy{
			{root: "/sys/fs/cgroup/cpu,cpuacct"}, {root: "/sys/fs/cgroup/cpuset", cpuset: true}, {root: "/sys/fs/cgroup/unified"},
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := hierarchies(c.mounts); !slices.Equal(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestGroups makes, fills, finds and removes groups in folders that stand for trees.
func TestGroups(t *testing.T) {
	plain, sets := t.TempDir(), t.TempDir()
	trees := []hierarchy{{root: plain}, {root: sets, cpuset: true}}
	for file, text := range map[string]string{"cpuset.cpus": "0-1", "cpuset.mems": "0"} {
		if err := os.WriteFile(filepath.Join(sets, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dead := fmt.Sprintf("%s%d", groupPrefix, math.MaxInt32)
	ours := fmt.Sprintf("%s%d", groupPrefix, os.Getpid())
	for _, name := range []string{dead, ours} {
		if err := makeGroup(trees, name); err != nil {
			t.Fatal(err)
		}
	}
	if cpus, err := os.ReadFile(filepath.Join(sets, ours, "cpuset.cpus")); err != nil || string(cpus) != "0-1" {
		t.Errorf("the group has the processors %q, %v", cpus, err)
	}
	if stale := staleGroups(trees); !slices.Equal(stale, []string{dead}) {
		t.Errorf("stale are %v, want %s alone: the process of the other one runs", stale, dead)
	}
	if err := os.MkdirAll(filepath.Join(plain, dead, "kubepods", "pod1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := removeGroup(trees[:1], dead); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(plain, dead)); !os.IsNotExist(err) {
		t.Errorf("the group is still there: %v", err)
	}
	// A file that is no kernel's keeps its folder, as a process keeps its group.
	if err := removeTree(filepath.Join(sets, ours)); err == nil {
		t.Error("a group that cannot go is not told of")
	}
}

func TestLeftoversTellsOfProcesses(t *testing.T) {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	if err := leftovers([]string{own}, "/no/such/folder"); err == nil {
		t.Error("this process is not found in its own namespace")
	}
	if err := leftovers([]string{"pid:[1]"}, "/no/such/folder"); err != nil {
		t.Error(err)
	}
	if _, err := namespacesOf(os.Getpid()); err == nil {
		t.Error("a process in our own namespaces is taken for one inside")
	}
}
