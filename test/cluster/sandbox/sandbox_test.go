// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// What killed runs have left is removed, and what live ones use is not.
func TestOnlyTheGroupsOfEndedRunsAreStale(t *testing.T) {
	root, prefix := t.TempDir(), "usher-test-"
	dead, live := fmt.Sprint(groupPrefix, math.MaxInt32), fmt.Sprint(groupPrefix, os.Getpid())
	trees := []hierarchy{{root: root}}
	for _, name := range []string{dead, live} {
		registrytest.NoError(t, makeGroup(trees, name))
	}
	if stale := staleGroups(trees); !slices.Equal(stale, []string{dead}) {
		t.Errorf("stale are %v, want %s alone: the process of the other one runs", stale, dead)
	}
	if err := removeGroup(trees, dead); err != nil {
		t.Error(err)
	}
	for _, name := range []string{prefix + "2147483647-dead", prefix + "1-live", prefix + "logs-1"} {
		registrytest.NoError(t, os.Mkdir(filepath.Join(root, name), 0o755))
	}
	registrytest.NoError(t, removeStale(root, prefix))
	if left, err := filepath.Glob(filepath.Join(root, "*")); err != nil || len(left) != 3 {
		t.Errorf("left are %v, want the live group and two directories: %v", left, err)
	}
}

// A run reports what it has left behind.
func TestLeftovers(t *testing.T) {
	own, err := os.Readlink("/proc/self/ns/pid")
	registrytest.NoError(t, err)
	if err := leftovers([]string{own}, "/no/such/directory"); err == nil {
		t.Error("this process is not found in its own namespace")
	}
	if err := leftovers(nil, "/proc"); err == nil {
		t.Error("the mount of /proc is not found")
	}
	if err := leftovers([]string{"pid:[1]"}, "/no/such/directory"); err != nil {
		t.Error(err)
	}
	if _, err := namespacesOf(os.Getpid()); err == nil {
		t.Error("a process in our own namespaces is taken for one inside")
	}
}
