// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU times in /proc/PID/stat: USER_HZ is 100 on every
// architecture that Go runs on.
const clockTick = 10 * time.Millisecond

// CPU is the CPU time of a process and its threads, in user and kernel mode.
func (t Table) CPU(pid int) (time.Duration, error) {
	raw, err := os.ReadFile(t.path(strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	// The first field after the command is field 3; 14 and 15 are utime and stime.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	const user, system = 14 - 3, 15 - 3
	if len(fields) <= system {
		return 0, fmt.Errorf("read the CPU time of process %d: %q has too few fields", pid, raw)
	}
	var ticks int64
	for _, field := range []string{fields[user], fields[system]} {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// PeakRSS is the peak resident memory of a process, in bytes (VmHWM of
// /proc/PID/status).
func (t Table) PeakRSS(pid int) (int64, error) {
	raw, err := os.ReadFile(t.path(strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, fmt.Errorf("read the peak memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(raw)) {
		value, ok := strings.CutPrefix(line, "VmHWM:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the peak memory of process %d: %w", pid, err)
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("read the peak memory of process %d: its status has no VmHWM", pid)
}

// MachineCPU is the time since boot that the machine's processors were busy with
// anything, or were taken away by a hypervisor.
func (t Table) MachineCPU() (time.Duration, error) {
	raw, err := os.ReadFile(t.path("stat"))
	if err != nil {
		return 0, fmt.Errorf("read the machine's CPU time: %w", err)
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	fields := strings.Fields(line)
	// user nice system idle iowait irq softirq steal
	const idle, iowait, all = 4, 5, 9
	if len(fields) < all || fields[0] != "cpu" {
		return 0, fmt.Errorf("read the machine's CPU time: %q is not what it should be", line)
	}
	var ticks int64
	for i, field := range fields[:all] {
		if i == 0 || i == idle || i == iowait {
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the machine's CPU time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// Age is how long a process has run, accurate to 10 ms.
func (t Table) Age(pid int) (time.Duration, error) {
	stat, err := t.stat(pid)
	if err != nil {
		return 0, err
	}
	raw, err := os.ReadFile(t.path("uptime"))
	if err != nil {
		return 0, fmt.Errorf("read how long the machine runs: %w", err)
	}
	text, _, _ := strings.Cut(string(raw), " ")
	up, err := time.ParseDuration(text + "s")
	if err != nil {
		return 0, fmt.Errorf("read how long the machine runs: %w", err)
	}
	return up - time.Duration(stat.startTicks)*clockTick, nil
}
