// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// tailLines is how much of its log an ExitError quotes: enough for the last words of a
// Kubernetes component, and short enough for a terminal.
const tailLines = 12

// Process is one running or ended child.
type Process struct {
	spec      Spec
	cmd       *exec.Cmd
	logOffset int64
	done      chan struct{}
	endedAt   time.Time   // valid once done is closed
	asked     atomic.Bool // a signal was sent on purpose
}

// ExitError reports that a process ended, how, and its last output.
type ExitError struct {
	// Name is the process's name, for instance "kube-apiserver".
	Name string
	// Status is how it ended, for instance "exit status 1" or "signal: killed".
	Status string
	// Log is the path of its log.
	Log string
	// Tail are the last lines of its log, oldest first.
	Tail []string
}

// Error gives the gist in its first line and the details below.
func (e *ExitError) Error() string {
	said := "\n  it wrote nothing"
	if len(e.Tail) > 0 {
		said = "\n  its last lines:\n    " + strings.Join(e.Tail, "\n    ")
	}
	return fmt.Sprintf("%s ended (%s)%s\n  whole log: %s", e.Name, e.Status, said, e.Log)
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log returns the path of the log.
func (p *Process) Log() string { return p.spec.Log }

// Done is closed when the process has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended returns how and when the process ended; nil while it runs.
func (p *Process) Ended() (*os.ProcessState, time.Time) {
	select {
	case <-p.done:
		return p.cmd.ProcessState, p.endedAt
	default:
		return nil, time.Time{}
	}
}

// ExitError describes the end of the process; nil while it runs.
func (p *Process) ExitError() *ExitError {
	if state, _ := p.Ended(); state == nil {
		return nil
	}
	return &ExitError{Name: p.spec.Name, Status: p.cmd.ProcessState.String(), Log: p.spec.Log, Tail: p.Tail(tailLines)}
}

// Tail returns the last n lines that this run wrote to its log.
func (p *Process) Tail(n int) []string { return tailOf(p.spec.Log, p.logOffset, n) }

// Stop sends SIGTERM, and SIGKILL if the process still runs after grace or when ctx
// ends earlier. It returns when the process is gone; stopping an ended process is not
// an error.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return p.Kill()
}

// Kill ends the process with SIGKILL and returns when it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// pollEvery is how often WaitReady checks.
const pollEvery = 30 * time.Millisecond

// WaitReady returns nil as soon as ready does. It fails if the process ends, with its
// *ExitError, and when ctx ends, with its cause and the last answer.
func (p *Process) WaitReady(ctx context.Context, ready func(context.Context) error) error {
	var answer error
	err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
		answer = ready(ctx)
		// After the process has ended, another one may answer in its place.
		if exit := p.ExitError(); exit != nil {
			return false, exit
		}
		return answer == nil, nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s is not ready: %w; its last answer was: %w\n  log: %s", p.spec.Name, context.Cause(ctx), answer, p.Log())
	}
	return err
}

// Signal sends a signal to the process itself. It is not an error if that has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	p.asked.Store(true)
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s (pid %d): %w", sig, p.spec.Name, p.PID(), err)
	}
	return nil
}

// tailBytes is how far back Tail reads, tailLineSize how many bytes of a line it keeps.
const tailBytes, tailLineSize = 64 << 10, 400

// TailFile returns the last n non-empty lines of a file, oldest first, each cut to 400
// bytes. An unreadable file has no lines.
func TailFile(path string, n int) []string { return tailOf(path, 0, n) }

func tailOf(path string, from int64, n int) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil
	}
	from = max(from, size-tailBytes)
	text, err := io.ReadAll(io.NewSectionReader(f, from, size-from))
	if err != nil {
		return nil
	}
	lines := []string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if line = strings.TrimRight(line, " \t\r"); line != "" {
			lines = append(lines, line[:min(len(line), tailLineSize)])
		}
	}
	return lines[max(0, len(lines)-n):]
}

// clockTick is the unit of start times in /proc: USER_HZ is 100 on every architecture
// that Go runs on.
const clockTick = 10 * time.Millisecond

// Table reads what processes use from /proc.
type Table struct{}

// seconds returns a duration that procfs gives in seconds.
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

// CPU returns the CPU time of a process and its threads, in user and kernel mode.
func (Table) CPU(pid int) (time.Duration, error) {
	stat, err := readProc(pid, procfs.Proc.Stat)
	return seconds(stat.CPUTime()), err
}

// RSS returns the resident memory of a process, in bytes.
func (Table) RSS(pid int) (int64, error) {
	statm, err := readProc(pid, procfs.Proc.Statm)
	return int64(statm.ResidentBytes()), err
}

// PeakRSS returns the peak resident memory of a process, in bytes.
func (Table) PeakRSS(pid int) (int64, error) {
	status, err := readProc(pid, procfs.Proc.NewStatus)
	return int64(status.VmHWM), err
}

// Age returns how long a process has run, accurate to 10 ms.
func (Table) Age(pid int) (time.Duration, error) {
	stat, err := readProc(pid, procfs.Proc.Stat)
	var up unix.Timespec
	err = errors.Join(err, unix.ClockGettime(unix.CLOCK_BOOTTIME, &up))
	return time.Duration(up.Nano()) - time.Duration(stat.Starttime)*clockTick, err
}

// MachineCPU returns the time since boot that the machine's processors were busy with anything, or were
// taken away by a hypervisor.
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
