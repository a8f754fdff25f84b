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

// Footprint is what Usher takes of the node, all replicas together if nothing else is
// said.
type Footprint struct {
	// Image is the size of the archive of the image for one platform, with compressed
	// layers; Program that of the program in it.
	Image, Program int64
	// Installations are how Usher was installed, and how long it took to come up.
	Installations []Installation
	// Idle is before there is a CloneSet, Loaded while stories are played.
	Idle, Loaded Usage
}

// Usage is what processes have used in a span of time.
type Usage struct {
	// During is the span, CPU the time that they computed in it.
	During, CPU time.Duration
	// Memory is the resident memory at the end of the span of the process that has
	// most, Peak the most that any has had at a time since its start.
	Memory, Peak int64
	// Processes is how many there were, those that were replaced included.
	Processes int
}

const (
	// idleTime is how long Usher is watched with nothing to do.
	idleTime = 5 * time.Second
	// meterEvery is how often the processes are looked at: what one that ends has
	// computed since the last look is not seen.
	meterEvery = time.Second
)

// meter adds up what the processes of Usher use.
type meter struct {
	began time.Time
	mu    sync.Mutex
	seen  map[int]*use
}

// use is what one process had used at the first look and at the last.
type use struct {
	before, now  time.Duration
	memory, peak int64
	alive        bool
}

func newMeter() (*meter, error) {
	m := &meter{began: time.Now(), seen: map[int]*use{}}
	return m, m.look(true)
}

// look reads all processes. One that comes later has computed nothing before.
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

// follow looks again and again until ctx ends.
func (m *meter) follow(ctx context.Context) {
	tick := time.NewTicker(meterEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = m.look(false) // The next look, or the last, says what is wrong.
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

// measureIdle watches Usher while there is nothing to do.
func (s *stage) measureIdle(ctx context.Context) error {
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
func (s *stage) measureImage() error {
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
