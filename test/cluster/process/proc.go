// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Identity permanently identifies one run of one process: the kernel reuses a process
// ID but not the pair of ID and start time, and the boot ID distinguishes boots of the
// machine.
type Identity struct {
	// PID is the process id.
	PID int `json:"pid"`
	// StartTicks is the start time in clock ticks since boot (field 22 of
	// /proc/PID/stat).
	StartTicks uint64 `json:"startTicks"`
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string `json:"bootID"`
}

// Table reads processes from a mounted proc file system.
type Table struct {
	// Root is where proc is mounted; empty means /proc.
	Root string
}

// Identify returns the identity of a running process. The error is os.ErrNotExist if
// there is none.
func (t Table) Identify(pid int) (Identity, error) {
	stat, err := t.stat(pid)
	if err != nil {
		return Identity{}, err
	}
	boot, err := t.BootID()
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, StartTicks: stat.startTicks, BootID: boot}, nil
}

// BootID names the present boot of the machine.
func (t Table) BootID() (string, error) {
	boot, err := os.ReadFile(t.path("sys", "kernel", "random", "boot_id"))
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(boot)), nil
}

// Alive reports whether exactly the process that id names still runs. A zombie does not
// run.
func (t Table) Alive(id Identity) bool {
	now, err := t.Identify(id.PID)
	if err != nil || now != id {
		return false
	}
	stat, err := t.stat(id.PID)
	return err == nil && stat.state != "Z" && stat.state != "X"
}

// RSS is the resident memory of a process in bytes.
func (t Table) RSS(pid int) (int64, error) {
	raw, err := os.ReadFile(t.path(strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0, fmt.Errorf("read the memory of process %d: %q has no second field", pid, raw)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return pages * int64(os.Getpagesize()), nil
}

type stat struct {
	state      string
	startTicks uint64
}

func (t Table) stat(pid int) (stat, error) {
	raw, err := os.ReadFile(t.path(strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	s, err := parseStat(raw)
	if err != nil {
		return stat{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	return s, nil
}

// parseStat reads fields 3 (state) and 22 (start time). The second field, the command,
// may hold spaces and parentheses, so fields are counted from the last closing one.
func parseStat(raw []byte) (stat, error) {
	end := bytes.LastIndexByte(raw, ')')
	if end < 0 {
		return stat{}, fmt.Errorf("%q has no command field", raw)
	}
	fields := strings.Fields(string(raw[end+1:]))
	const startField = 22 - 3
	if len(fields) <= startField {
		return stat{}, fmt.Errorf("%q has too few fields", raw)
	}
	ticks, err := strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("start time: %w", err)
	}
	return stat{state: fields[0], startTicks: ticks}, nil
}

func (t Table) path(parts ...string) string {
	root := t.Root
	if root == "" {
		root = "/proc"
	}
	return filepath.Join(append([]string{root}, parts...)...)
}
