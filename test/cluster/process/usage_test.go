// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// statLine numbers the fields: utime is 14 ticks and stime 15.
func TestCPU(t *testing.T) {
	table := fakeProc(t, "boot", map[int]string{7: statLine(7, "a) R (b 1 2", "R", 12), 8: "8 (etcd) S 4 5"})
	if got, err := table.CPU(7); err != nil || got != 290*time.Millisecond {
		t.Errorf("CPU of 7: %s, %v; want 290ms", got, err)
	}
	for _, pid := range []int{8, 9} {
		if got, err := table.CPU(pid); err == nil {
			t.Errorf("CPU of %d: %s, want an error", pid, got)
		}
	}
}

func TestPeakRSS(t *testing.T) {
	for text, want := range map[string]int64{
		"Name:\tusher\nVmHWM:\t   51200 kB\nVmRSS:\t 40000 kB\n": 50 << 20,
		"Name:\tusher\n":       -1,
		"VmHWM:\t   many kB\n": -1,
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "7"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "7", "status"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := Table{Root: root}.PeakRSS(7)
		if want >= 0 && (err != nil || got != want) {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
		if want < 0 && err == nil {
			t.Errorf("%q: %d, want an error", text, got)
		}
	}
}

// The process started at tick 12, that is 120 ms after the machine.
func TestAge(t *testing.T) {
	for text, want := range map[string]time.Duration{"5.12 9.00\n": 5 * time.Second, "": -1, "long 1\n": -1} {
		table := fakeProc(t, "boot", map[int]string{7: statLine(7, "usher", "S", 12)})
		if err := os.WriteFile(filepath.Join(table.Root, "uptime"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := table.Age(7)
		if want >= 0 && (err != nil || got != want) || want < 0 && err == nil {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
		if _, err := table.Age(9); err == nil {
			t.Error("a process that is not there has an age")
		}
	}
}

func TestUsageOfThisProcess(t *testing.T) {
	if _, err := (Table{}).CPU(os.Getpid()); err != nil {
		t.Error(err)
	}
	if got, err := (Table{}).PeakRSS(os.Getpid()); err != nil || got < 1<<20 {
		t.Errorf("peak memory of this process: %d, %v", got, err)
	}
}

func TestMachineCPU(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"cpu  10 20 30 4000 5000 1 2 3 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n": 660 * time.Millisecond,
		"cpu  10 20 30 4000\n":           -1,
		"intr 10 20 30 40 50 1 2 3 4\n":  -1,
		"cpu  10 x 30 40 50 1 2 3 0 0\n": -1,
	} {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "stat"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := Table{Root: root}.MachineCPU()
		if (want < 0) != (err != nil) || err == nil && got != want {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
	}
}
