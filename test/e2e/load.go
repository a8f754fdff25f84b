// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"runtime"
	"syscall"
	"time"

	"github.com/usher-dev/usher/test/cluster/process"
)

// load is what a run used, and what other programs used of the machine meanwhile:
// latencies measured on a machine that is busy with other work mean little.
type load struct {
	took, ours, machine time.Duration
	processors          int
}

// loadMeter is the start of a run.
type loadMeter struct {
	began         time.Time
	ours, machine time.Duration
}

func newLoadMeter() (loadMeter, error) {
	ours, machine, err := cpuTimes()
	return loadMeter{began: time.Now(), ours: ours, machine: machine}, err
}

// read returns what was used since the start, once everything that the run started has
// ended.
func (m loadMeter) read() (load, error) {
	ours, machine, err := cpuTimes()
	return load{took: time.Since(m.began), ours: ours - m.ours, machine: machine - m.machine, processors: runtime.NumCPU()}, err
}

// cpuTimes returns the CPU times of this program's ended descendants, and of all
// programs on the machine.
func cpuTimes() (ours, machine time.Duration, err error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &used); err != nil {
		return 0, 0, fmt.Errorf("read the CPU time of the run: %w", err)
	}
	machine, err = process.Table{}.MachineCPU()
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), machine, err
}

func (l load) String() string {
	others := max(0, 100*(l.machine-l.ours).Seconds()/l.took.Seconds()/float64(l.processors))
	return fmt.Sprintf("It took %s; of the %d processors other programs took %.0f %% meanwhile.",
		l.took.Round(time.Second), l.processors, others)
}
