// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/test/cluster"
	"github.com/usher-dev/usher/test/cluster/process"
)

const thisBoot = "boot-2"

// procWith is a proc file system with processes that started at the given ticks.
func procWith(t *testing.T, began map[int]uint64) process.Table {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "sys", "kernel", "random", "boot_id"), thisBoot+"\n")
	for pid, ticks := range began {
		line := fmt.Sprintf("%d (devcluster) S%s %d 0\n", pid, strings.Repeat(" 1", 18), ticks)
		write(t, filepath.Join(root, strconv.Itoa(pid), "stat"), line)
	}
	return process.Table{Root: root}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func stateOf(phase Phase, pid int, ticks uint64, boot string) State {
	return State{
		Supervisor: process.Identity{PID: pid, StartTicks: ticks, BootID: boot},
		Phase:      phase, Since: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
	}
}

func TestExamine(t *testing.T) {
	table := procWith(t, map[int]uint64{100: 5000})
	cases := map[string]struct {
		state   State
		verdict Verdict
		reason  string // a part of it
	}{
		"it runs":                      {stateOf(Ready, 100, 5000, thisBoot), Running, ""},
		"it starts":                    {stateOf(Starting, 100, 5000, thisBoot), Running, ""},
		"killed":                       {stateOf(Ready, 99, 5000, thisBoot), Stale, "process 99, has ended without a word"},
		"killed while it started":      {stateOf(Starting, 99, 5000, thisBoot), Stale, "process 99"},
		"its number is reused":         {stateOf(Ready, 100, 4000, thisBoot), Stale, "number 100 now belongs to another"},
		"a restart":                    {stateOf(Ready, 99, 5000, "boot-1"), Stale, "the machine was restarted"},
		"a restart, the number reused": {stateOf(Ready, 100, 5000, "boot-1"), Stale, "the machine was restarted"},
		"it failed":                    {stateOf(Failed, 99, 5000, thisBoot), Ended, ""},
		"it failed before a restart":   {stateOf(Failed, 100, 5000, "boot-1"), Ended, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := Write(dir, c.state); err != nil {
				t.Fatal(err)
			}
			got, err := Examine(dir, table)
			if err != nil || got.Verdict != c.verdict || !strings.Contains(got.Reason, c.reason) {
				t.Errorf("got %s (%s), %v; want %s (%s)", got.Verdict, got.Reason, err, c.verdict, c.reason)
			}
			if !reflect.DeepEqual(got.State, c.state) {
				t.Errorf("read back %+v, want %+v", got.State, c.state)
			}
		})
	}
}

func TestExamineOddFiles(t *testing.T) {
	cases := map[string]struct {
		text    string
		verdict Verdict
	}{
		"half a file": {`{"supervisor": {"pid": 1`, Stale},
		"not ours":    {`{"hello": "world"}`, Stale},
		"empty":       {"", Stale},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, fileName), c.text)
			got, err := Examine(dir, process.Table{})
			if err != nil || got.Verdict != c.verdict || got.Reason == "" {
				t.Errorf("got %+v, %v; want %s with a reason", got, err, c.verdict)
			}
		})
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, stateOf(Ready, 1, 1, thisBoot)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second one finds nothing, which is not an error
		if err := Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Examine(dir, process.Table{}); err != nil || got.Verdict != None {
		t.Errorf("got %s, %v; want None", got.Verdict, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSurvivors(t *testing.T) {
	table := procWith(t, map[int]uint64{101: 5001, 102: 6000})
	s := stateOf(Ready, 100, 5000, thisBoot)
	for i, name := range []string{"etcd", "kube-apiserver", "kube-scheduler"} {
		id := process.Identity{PID: 101 + i, StartTicks: uint64(5001 + i), BootID: thisBoot}
		s.Components = append(s.Components, cluster.Component{Name: name, Process: id})
	}
	// 101 is still etcd; 102 is another program now; 103 is gone.
	got := Survivors(s, table)
	if len(got) != 1 || got[0].Name != "etcd" {
		t.Errorf("got %+v, want etcd", got)
	}
}
