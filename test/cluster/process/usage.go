// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// clockTick is the unit of start times in /proc: USER_HZ is 100 on every architecture
// that Go runs on.
const clockTick = 10 * time.Millisecond

// Table reads what processes use from /proc.
type Table struct{}

// seconds is a duration that procfs gives in seconds.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// readProc applies a function to a process's entry in /proc.
func readProc[T any](pid int, read func(procfs.Proc) (T, error)) (value T, err error) {
	proc, err := procfs.NewProc(pid)
	if err == nil {
		value, err = read(proc)
	}
	if err != nil {
		err = fmt.Errorf("read the usage of process %d: %w", pid, err)
	}
	return value, err
}

// CPU is the CPU time of a process and its threads, in user and kernel mode.
func (Table) CPU(pid int) (time.Duration, error) {
	stat, err := readProc(pid, procfs.Proc.Stat)
	return seconds(stat.CPUTime()), err
}

// RSS is the resident memory of a process, in bytes.
func (Table) RSS(pid int) (int64, error) {
	statm, err := readProc(pid, procfs.Proc.Statm)
	return int64(statm.ResidentBytes()), err
}

// PeakRSS is the peak resident memory of a process, in bytes.
func (Table) PeakRSS(pid int) (int64, error) {
	status, err := readProc(pid, procfs.Proc.NewStatus)
	return int64(status.VmHWM), err
}

// Age is how long a process has run, accurate to 10 ms.
func (Table) Age(pid int) (time.Duration, error) {
	stat, err := readProc(pid, procfs.Proc.Stat)
	var up unix.Timespec
	err = errors.Join(err, unix.ClockGettime(unix.CLOCK_BOOTTIME, &up))
	return time.Duration(up.Nano()) - time.Duration(stat.Starttime)*clockTick, err
}

// MachineCPU is the time since boot that the machine's processors were busy with
// anything, or were taken away by a hypervisor.
func (Table) MachineCPU() (time.Duration, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, fmt.Errorf("read the machine's CPU time: %w", err)
	}
	stat, err := fs.Stat()
	if err != nil {
		return 0, fmt.Errorf("read the machine's CPU time: %w", err)
	}
	cpu := stat.CPUTotal
	return seconds(cpu.User + cpu.Nice + cpu.System + cpu.IRQ + cpu.SoftIRQ + cpu.Steal), nil
}
