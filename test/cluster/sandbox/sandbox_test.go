// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"math"
	"os"
	"os/exec"
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

// Frozen groups go on, of either version, and nothing else is written.
func TestThawTree(t *testing.T) {
	root := t.TempDir()
	group := filepath.Join(root, "pods", "one")
	checktest.NoError(t, os.MkdirAll(group, 0o755))
	frozen := map[string]string{"freezer.state": "FROZEN", "cgroup.freeze": "1", "cgroup.procs": "1"}
	for name, text := range frozen {
		checktest.NoError(t, os.WriteFile(filepath.Join(group, name), []byte(text), 0o600))
	}
	checktest.NoError(t, thawTree(root))
	thawed := map[string]string{}
	for name := range frozen {
		thawed[name] = string(checktest.Must(os.ReadFile(filepath.Join(group, name)))(t))
	}
	checktest.Same(t, "the groups", map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0", "cgroup.procs": "1"}, thawed)
	checktest.NoError(t, thawTree(filepath.Join(root, "none")))
}

// What a group's files list is ended, also of the groups in it, and nothing else.
func TestKillTree(t *testing.T) {
	root := t.TempDir()
	inside, outside := exec.CommandContext(t.Context(), "sleep", "60"), exec.CommandContext(t.Context(), "sleep", "60")
	for _, cmd := range []*exec.Cmd{inside, outside} {
		checktest.NoError(t, cmd.Start())
	}
	group := filepath.Join(root, "pods", "one")
	checktest.NoError(t, os.MkdirAll(group, 0o755))
	checktest.NoError(t, os.WriteFile(filepath.Join(root, "pods", "cgroup.procs"), []byte("0\n"), 0o600))
	checktest.NoError(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Appendln(nil, inside.Process.Pid), 0o600))
	checktest.NoError(t, os.WriteFile(filepath.Join(group, "tasks"), fmt.Appendln(nil, outside.Process.Pid), 0o600))
	found, err := killTree(root)
	if err != nil || !found {
		t.Errorf("found %t, %v", found, err)
	}
	_ = inside.Wait() // It says how the process has ended.
	checktest.Same(t, "its end", "signal: killed", inside.ProcessState.String())
	if !alive(outside.Process.Pid) {
		t.Error("another process has ended, too")
	}
	if found, err := killTree(filepath.Join(root, "none")); found || err != nil {
		t.Errorf("of no group: found %t, %v", found, err)
	}
}
