// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/usher-dev/usher/test/cluster/process"
)

// Footprint is what Usher takes up on the node, all replicas together unless stated
// otherwise.
type Footprint struct {
	// Image is the size of the image's archive for one platform, with compressed
	// layers; Program is the size of the program in it.
	Image, Program int64
	// Installations are the ways Usher was installed, and how long it took to come up.
	Installations []Installation
	// Idle is without any CloneSet, Loaded while stories run.
	Idle, Loaded Usage
}

// Usage is what processes have used over a period.
type Usage struct {
	// During is the period, CPU the CPU time used in it.
	During, CPU time.Duration
	// Memory is the resident memory of the largest process at the end of the period,
	// Peak the most that any process has had since its start.
	Memory, Peak int64
	// Processes is how many there were, including replaced ones.
	Processes int
}

const (
	// idleTime is how long Usher is measured with nothing to do.
	idleTime = 5 * time.Second
	// meterEvery is how often the processes are read: what a process used between the
	// last reading and its end is missed.
	meterEvery = time.Second
)

// meter sums up what Usher's processes use.
type meter struct {
	began time.Time
	mu    sync.Mutex
	seen  map[int]*use
}

// use is what one process had used at the first reading and at the last.
type use struct {
	before, now  time.Duration
	memory, peak int64
	alive        bool
}

func newMeter() (*meter, error) {
	m := &meter{began: time.Now(), seen: map[int]*use{}}
	return m, m.look(true)
}

// look reads all processes. One that appears later had used nothing before.
func (m *meter) look(first bool) error {
	pids, err := usherProcesses()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range m.seen {
		u.alive = false
	}
	for _, pid := range pids {
		table := process.Table{}
		spent, errSpent := table.CPU(pid)
		memory, errMemory := table.RSS(pid)
		peak, errPeak := table.PeakRSS(pid)
		if errSpent != nil || errMemory != nil || errPeak != nil {
			continue // It has ended since.
		}
		u := m.seen[pid]
		if u == nil {
			u = &use{}
			m.seen[pid] = u
			if first {
				u.before = spent
			}
		}
		u.now, u.memory, u.peak, u.alive = spent, memory, peak, true
	}
	return nil
}

// follow reads repeatedly until ctx ends.
func (m *meter) follow(ctx context.Context) {
	tick := time.NewTicker(meterEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = m.look(false) // The next or the final reading reports the error.
		}
	}
}

// usage is what was used since newMeter.
func (m *meter) usage() (Usage, error) {
	if err := m.look(false); err != nil {
		return Usage{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	total := Usage{During: time.Since(m.began), Processes: len(m.seen)}
	for _, u := range m.seen {
		total.CPU += u.now - u.before
		total.Peak = max(total.Peak, u.peak)
		if u.alive {
			total.Memory = max(total.Memory, u.memory)
		}
	}
	return total, nil
}

// measureIdle measures Usher while there is nothing to do.
func (s *session) measureIdle(ctx context.Context) error {
	m, err := newMeter()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(idleTime):
	}
	s.footprint.Idle, err = m.usage()
	return err
}

// measureImage reads the sizes of what was installed.
func (s *session) measureImage() error {
	archive, err := os.Stat(s.kit.Usher)
	if err != nil {
		return err
	}
	pids, err := usherProcesses()
	if err != nil {
		return err
	}
	if len(pids) == 0 {
		return fmt.Errorf("measure %s: it does not run", usherProgram)
	}
	program, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pids[0]))
	if err != nil {
		return err
	}
	s.footprint.Image, s.footprint.Program = archive.Size(), program.Size()
	return nil
}
