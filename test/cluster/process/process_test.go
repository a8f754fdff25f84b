// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bound limits how long a test waits.
const bound = 20 * time.Second

func spawner(t *testing.T) *Spawner {
	t.Helper()
	s := NewSpawner()
	t.Cleanup(s.Close)
	return s
}

func start(t *testing.T, s *Spawner, role, log string) *Process {
	t.Helper()
	p, err := s.Start(Spec{
		Name: role, Path: os.Args[0], Log: log,
		Env: append(os.Environ(), roleEnv+"="+role, "PROCESS_TEST_DIR="+filepath.Dir(log)),
	})
	if err != nil {
		t.Fatalf("start %s: %v", role, err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(bound)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %s: %s", bound, what)
		}
	}
}

func waitDone(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(bound):
		t.Fatalf("%s has not ended within %s", p.Name(), bound)
	}
}

func TestAnEndNobodyAskedForIsTold(t *testing.T) {
	log := filepath.Join(t.TempDir(), "logs", "talker.log")
	p := start(t, spawner(t), "talker", log)
	waitDone(t, p)
	exit := p.ExitError()
	if exit == nil || p.Asked() {
		t.Fatalf("exit %v, asked %t; want an end that nobody asked for", exit, p.Asked())
	}
	last := []string{}
	for i := 30 - tailLines; i < 30; i++ {
		last = append(last, fmt.Sprint("line ", i))
	}
	want := &ExitError{Name: "talker", Status: "exit status 3", Log: log, Tail: last}
	if !reflect.DeepEqual(exit, want) {
		t.Errorf("got %+v, want %+v", exit, want)
	}
	for _, part := range []string{"talker ended (exit status 3)", "line 29", "whole log: " + log} {
		if !strings.Contains(exit.Error(), part) {
			t.Errorf("the message lacks %q:\n%s", part, exit.Error())
		}
	}
}

func TestTheTailIsOfThisRun(t *testing.T) {
	log := filepath.Join(t.TempDir(), "talker.log")
	if err := os.WriteFile(log, []byte("of the run before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := start(t, spawner(t), "talker", log)
	waitDone(t, p)
	if tail := p.Tail(1000); len(tail) != 30 || tail[0] != "line 0" {
		t.Errorf("the tail is %q; want this run's 30 lines", tail)
	}
	if all := TailFile(log, 1000); len(all) != 31 {
		t.Errorf("the file has %d lines; want those of the run before too", len(all))
	}
}

func TestStopAsksFirst(t *testing.T) {
	p := start(t, spawner(t), "waiter", filepath.Join(t.TempDir(), "log"))
	eventually(t, "the process waits", func() bool { return len(p.Tail(1)) > 0 })
	if p.ExitError() != nil {
		t.Fatal("a running process has an exit error")
	}
	if err := p.Stop(t.Context(), bound); err != nil {
		t.Fatal(err)
	}
	if !p.Asked() || p.ExitError().Status != "exit status 0" || p.Tail(1)[0] != "ends in order" {
		t.Errorf("asked %t, exit %v", p.Asked(), p.ExitError())
	}
	if err := p.Stop(t.Context(), bound); err != nil {
		t.Errorf("stopping twice: %v", err)
	}
}

func TestStopKillsTheStubborn(t *testing.T) {
	p := start(t, spawner(t), "stubborn", filepath.Join(t.TempDir(), "log"))
	eventually(t, "the process waits", func() bool { return len(p.Tail(1)) > 0 })
	if err := p.Stop(t.Context(), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if status := p.ExitError().Status; status != "signal: killed" {
		t.Errorf("status is %q", status)
	}
}

func TestEachChildLeadsAGroup(t *testing.T) {
	p := start(t, spawner(t), "waiter", filepath.Join(t.TempDir(), "log"))
	group, err := syscall.Getpgid(p.PID())
	if err != nil || group != p.PID() {
		t.Errorf("group %d, %v; want the process's own, %d", group, err, p.PID())
	}
}

func TestStartFails(t *testing.T) {
	s := spawner(t)
	_, err := s.Start(Spec{Name: "ghost", Path: "/nonexistent/ghost", Log: filepath.Join(t.TempDir(), "log")})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "start ghost") {
		t.Errorf("error is %v; want one that names the program", err)
	}
	s.Close()
	if _, err := s.Start(Spec{Name: "late"}); !errors.Is(err, ErrClosed) {
		t.Errorf("error after Close is %v; want ErrClosed", err)
	}
}

// A parent killed with SIGKILL cannot end its children; the kernel does it.
func TestNoChildOutlivesItsParent(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	parent := start(t, spawner(t), "parent", log)
	child := 0
	eventually(t, "the parent tells its child", func() bool {
		tail := parent.Tail(1)
		if len(tail) == 0 {
			return false
		}
		_, err := fmt.Sscanf(tail[0], "child %d", &child)
		return err == nil
	})
	id, err := Table{}.Identify(child)
	if err != nil || !(Table{}).Alive(id) {
		t.Fatalf("the child does not run: %v", err)
	}
	if err := parent.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child ends", func() bool { return !(Table{}).Alive(id) })
}

func TestLastLines(t *testing.T) {
	long := strings.Repeat("ä", tailLineSize+50)
	cases := map[string]struct {
		text string
		n    int
		want []string
	}{
		"empty":             {"", 3, []string{}},
		"fewer than wanted": {"a\nb\n", 3, []string{"a", "b"}},
		"the last ones":     {"a\n\nb \r\nc", 2, []string{"b", "c"}},
		"a long one is cut": {long + "\n", 1, []string{strings.Repeat("ä", tailLineSize-1) + "…"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := lastLines(c.text, c.n); strings.Join(got, "|") != strings.Join(c.want, "|") {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
