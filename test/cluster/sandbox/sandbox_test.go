// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
)

// The remains of killed runs are removed; groups of live runs are not.
func TestOnlyTheGroupsOfEndedRunsAreStale(t *testing.T) {
	root, prefix := t.TempDir(), "usher-test-"
	dead, live := fmt.Sprint(groupPrefix, math.MaxInt32), fmt.Sprint(groupPrefix, os.Getpid())
	trees := []hierarchy{{root: root}}
	for _, name := range []string{dead, live} {
		checktest.NoError(t, makeGroup(trees, name))
	}
	checktest.Same(t, "stale", []string{dead}, staleGroups(trees))
	checktest.NoError(t, removeGroup(trees, dead))
	for _, name := range []string{prefix + "2147483647-dead", prefix + "1-live", prefix + "logs-1"} {
		checktest.NoError(t, os.Mkdir(filepath.Join(root, name), 0o755))
	}
	checktest.NoError(t, removeStale(root, prefix))
	if left, err := filepath.Glob(filepath.Join(root, "*")); err != nil || len(left) != 3 {
		t.Errorf("left are %v, want the live group and two directories: %v", left, err)
	}
}

// A run reports its remains.
func TestLeftovers(t *testing.T) {
	own := checktest.Must(os.Readlink("/proc/self/ns/pid"))(t)
	if err := leftovers([]string{own}, "/no/such/directory"); err == nil {
		t.Error("this process is not found in its own namespace")
	}
	if err := leftovers(nil, "/proc"); err == nil {
		t.Error("the mount of /proc is not found")
	}
	checktest.NoError(t, leftovers([]string{"pid:[1]"}, "/no/such/directory"))
	if _, err := namespacesOf(os.Getpid()); err == nil {
		t.Error("a process in our own namespaces is taken for one inside")
	}
}
