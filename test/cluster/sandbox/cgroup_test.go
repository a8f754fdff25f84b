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

// groups creates groups with these names in directories that stand for trees.
func groups(t *testing.T, names ...string) (trees []hierarchy) {
	t.Helper()
	trees = []hierarchy{{root: t.TempDir()}, {root: t.TempDir(), cpuset: true}}
	for file, text := range map[string]string{"cpuset.cpus": "0-1", "cpuset.mems": "0"} {
		if err := os.WriteFile(filepath.Join(trees[1].root, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		if err := makeGroup(trees, name); err != nil {
			t.Fatal(err)
		}
	}
	return trees
}

func TestGroupsOfTheDeadAreStale(t *testing.T) {
	dead := fmt.Sprintf("%s%d", groupPrefix, math.MaxInt32)
	trees := groups(t, dead, fmt.Sprintf("%s%d", groupPrefix, os.Getpid()))
	if stale := staleGroups(trees); !slices.Equal(stale, []string{dead}) {
		t.Errorf("stale are %v, want %s alone: the process of the other one runs", stale, dead)
	}
	if cpus, err := os.ReadFile(filepath.Join(trees[1].root, dead, "cpuset.cpus")); err != nil || string(cpus) != "0-1" {
		t.Errorf("a group has the processors %q, %v", cpus, err)
	}
}

func TestRemoveGroup(t *testing.T) {
	trees := groups(t, "group")
	if err := os.MkdirAll(filepath.Join(trees[0].root, "group", "kubepods", "pod1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := removeGroup(trees[:1], "group"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(trees[0].root, "group")); !os.IsNotExist(err) {
		t.Errorf("the group is still there: %v", err)
	}
	// An ordinary file keeps its directory from being removed, as a process keeps its
	// group.
	if err := removeGroup(trees[1:], "group"); err == nil {
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
