// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/stage"
)

const (
	// idleTime is how long Usher is measured with nothing to do.
	idleTime = 5 * time.Second
	// readEvery is how often the processes are read: the usage of a process between its last reading
	// and its end is missed.
	readEvery = time.Second
)

func (s *session) found(what, found, how string) {
	s.foundMu.Lock()
	defer s.foundMu.Unlock()
	s.footprint = append(s.footprint, stage.Cells(what, found, how))
}

// measureInstallation records how long an installation took until the replicas were ready.
func (s *session) measureInstallation(ctx context.Context, way string, took time.Duration) error {
	now := time.Now()
	pids, err := usherProcesses()
	if err != nil {
		return err
	}
	youngest, oldest := took, time.Duration(0)
	for _, pid := range pids {
		age, err := process.Table{}.Age(pid)
		if err != nil {
			return err
		}
		youngest, oldest = min(youngest, age), max(oldest, age)
	}
	lease, err := s.lease(ctx)
	if err != nil {
		return err
	}
	if lease.AcquireTime == nil {
		return errors.New("the lease of Usher's leader has no acquireTime")
	}
	s.found("`"+way+"` to ready", stage.Seconds(took),
		"from the command of docs/install.md until two replicas are ready and one leads; the image is on the node")
	s.found("process to leading, after `"+way+"`", stage.Seconds(lease.AcquireTime.Sub(now.Add(-oldest))),
		"from the start of the first replica's process to the acquireTime of the lease")
	s.found("process to ready, after `"+way+"`", stage.Seconds(youngest),
		"from the start of the last replica's process until its Pod is ready; the probe looks every 5 s")
	return nil
}

// measureImage reads the size of the installed image.
func (s *session) measureImage() error {
	pids, err := usherProcesses()
	if err == nil && len(pids) == 0 {
		err = fmt.Errorf("measure %s: it does not run", usherProgram)
	}
	if err != nil {
		return err
	}
	for _, file := range [][3]string{
		{s.kit.Usher, "image", "the archive that `make image` makes for one platform, layers compressed"},
		{fmt.Sprintf("/proc/%d/exe", pids[0]), "program in it", "its file"},
	} {
		info, err := os.Stat(file[0])
		if err != nil {
			return err
		}
		s.found(file[1], mebibytes(info.Size()), file[2])
	}
	return nil
}

// measureIdle measures Usher while there is nothing to do.
func (s *session) measureIdle(ctx context.Context) error {
	u, err := newUsage()
	if err != nil {
		return err
	}
	if err := stage.Pause(ctx, idleTime); err != nil {
		return err
	}
	rows, err := u.rows("idle", "no CloneSet yet")
	s.footprint = append(s.footprint, rows...)
	return err
}

// usage sums up the CPU time and memory of Usher's processes.
type usage struct {
	began time.Time
	mu    sync.Mutex
	// before and now are the CPU times of processes at the first reading and at their
	// last one; peak is the most memory of any, memory that of the living.
	before, now  map[int]time.Duration
	memory, peak int64
}

func newUsage() (*usage, error) {
	u := &usage{began: time.Now(), now: map[int]time.Duration{}}
	err := u.read()
	u.before = maps.Clone(u.now) // Later processes begin with 0.
	return u, err
}

// read reads all processes.
func (u *usage) read() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	pids, err := usherProcesses()
	u.memory = 0
	for _, pid := range pids {
		table := process.Table{}
		spent, errSpent := table.CPU(pid)
		memory, errMemory := table.RSS(pid)
		peak, errPeak := table.PeakRSS(pid)
		if errors.Join(errSpent, errMemory, errPeak) != nil {
			continue // the process has ended
		}
		u.now[pid], u.memory, u.peak = spent, max(u.memory, memory), max(u.peak, peak)
	}
	return err
}

// follow reads repeatedly until ctx ends.
func (u *usage) follow(ctx context.Context) {
	for stage.Pause(ctx, readEvery) == nil {
		_ = u.read() // The next or the final reading reports the error.
	}
}

// rows returns the usage since newUsage, as rows of a table.
func (u *usage) rows(when, what string) ([][]stage.Cell, error) {
	err := u.read()
	u.mu.Lock()
	defer u.mu.Unlock()
	cpu, took := time.Duration(0), time.Since(u.began)
	for pid, now := range u.now {
		cpu += now - u.before[pid]
	}
	span := fmt.Sprintf("%s, over %s", what, stage.Seconds(took))
	return [][]stage.Cell{
		stage.Cells(when+": CPU of all replicas", fmt.Sprintf("%.1f %% of a processor", 100*cpu.Seconds()/took.Seconds()),
			fmt.Sprintf("%s: %s of `/proc/PID/stat`, %d processes", span, stage.Seconds(cpu), len(u.now))),
		stage.Cells(when+": memory of the replica with most", mebibytes(u.memory), span+": resident at the end, `/proc/PID/statm`"),
		stage.Cells(when+": peak of the replica with most", mebibytes(u.peak), span+": `VmHWM` since its start"),
	}, err
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }
