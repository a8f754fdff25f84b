// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/cluster/link"
	"github.com/usher-dev/usher/test/cluster/process"
	servers "github.com/usher-dev/usher/test/servers/run"
	"github.com/usher-dev/usher/test/stage"
)

const (
	// lease is the guard's, to which InstallGuard gives Usher the right.
	lease = "usher-guard.usher.dev"
	// restartPause is how long a replica that ended stays away.
	restartPause = time.Second
	stopGrace    = 5 * time.Second
	// endGrace is a Pod's, as the chart has it.
	endGrace = 30 * time.Second
	// back bounds how long it takes until Usher is whole again after a fault.
	back = time.Minute
)

// replica is one process of Usher, which is restarted whenever it ends, as a kubelet does.
type replica struct {
	spec            process.Spec
	metrics, probes servers.HTTP
	link            *link.Link // to the API server

	process atomic.Pointer[process.Process] // the last one
	starts  atomic.Int64
	// runs means that it is kept running; leaves, that it is about to end, and no Service leads to it any more.
	runs, leaves atomic.Bool
}

// keep runs the replica until ctx ends.
func (r *replica) keep(ctx context.Context) error {
	for {
		p, err := process.Start(r.spec)
		if err != nil {
			return err
		}
		r.process.Store(p)
		r.starts.Add(1)
		select {
		case <-p.Done():
		case <-ctx.Done():
			return p.Stop(context.WithoutCancel(ctx), endGrace)
		}
		if stage.Pause(ctx, restartPause) != nil {
			return nil // ctx has ended.
		}
	}
}

// ready returns nil if the replica is ready according to its readiness probe.
func (r *replica) ready(ctx context.Context) error {
	_, err := r.probes.Do(ctx, http.MethodGet, "/readyz", nil, new(string))
	return err
}

// takesCalls reports whether a Service leads to the replica.
func (r *replica) takesCalls(ctx context.Context) bool {
	return r.runs.Load() && !r.leaves.Load() && r.ready(ctx) == nil
}

// running returns the replicas that are kept running.
func (s *soak) running() []*replica {
	return list.Only(s.replicas, func(r *replica) bool { return r.runs.Load() })
}

// state is a replica's own report.
type state struct {
	pid, goroutines int
	leads           bool
	resident        int64 // bytes
}

func (r *replica) state(ctx context.Context) (s state, err error) {
	p := r.process.Load()
	if p == nil {
		return s, fmt.Errorf("%s has not started", r.spec.Name)
	}
	s.pid = p.PID()
	families, err := r.metrics.Metrics(ctx, "/metrics")
	gauge := func(name string) (value float64) {
		for _, m := range families[name].GetMetric() {
			value += m.GetGauge().GetValue()
		}
		return value
	}
	s.goroutines, s.leads = int(gauge("go_goroutines")), gauge("leader_election_master_status") == 1
	if err == nil {
		s.resident, err = process.Table{}.RSS(s.pid)
	}
	return s, err
}

// leader returns the replica that leads, once all are ready.
func (s *soak) leader(ctx context.Context) (leader *replica, err error) {
	err = stage.Try(ctx, back, "all replicas of Usher to be ready, and one to lead", func(ctx context.Context) error {
		leader = nil
		for _, r := range s.running() {
			found, err := r.state(ctx)
			if err = errors.Join(err, r.ready(ctx)); err != nil {
				return err
			}
			if found.leads {
				leader = r
			}
		}
		if leader == nil {
			return errors.New("none leads")
		}
		return nil
	})
	return leader, err
}

// life has the usage of a process of Usher while it led, or while it did not.
type life struct {
	pid     int
	leads   bool
	began   time.Time
	samples []state
	last    time.Time
}

// lives are the lives of all replicas so far.
type lives []*life

// note adds a replica's report.
func (all *lives) note(now time.Time, s state) {
	at := slices.IndexFunc(*all, func(l *life) bool { return l.pid == s.pid && l.leads == s.leads })
	if at < 0 {
		at = len(*all)
		*all = append(*all, &life{pid: s.pid, leads: s.leads, began: now})
	}
	l := (*all)[at]
	l.samples, l.last = append(l.samples, s), now
}

// longest returns the life of the replica that led for the longest time; nil if none led.
func (all lives) longest() (found *life) {
	for _, l := range all {
		if l.leads && (found == nil || l.last.Sub(l.began) > found.last.Sub(found.began)) {
			found = l
		}
	}
	return found
}

// early returns the median usage from a tenth to a fifth of the life, and late that of its last tenth.
// Single samples go up and down with Usher's garbage.
func (l *life) early() state { return median(l.samples[len(l.samples)/10 : len(l.samples)/5+1]) }
func (l *life) late() state  { return median(l.samples[len(l.samples)-len(l.samples)/10-1:]) }

func median(samples []state) (m state) {
	by := func(value func(state) int64) int64 {
		all := list.Map(samples, value)
		slices.Sort(all)
		return all[len(all)/2]
	}
	m.goroutines = int(by(func(s state) int64 { return int64(s.goroutines) }))
	m.resident = by(func(s state) int64 { return s.resident })
	return m
}

// leak says which usage grew; empty if none did.
func (l *life) leak() string {
	early, late := l.early(), l.late()
	switch {
	case late.goroutines > early.goroutines+early.goroutines/10+20:
		return fmt.Sprintf("the leader's goroutines grew from %d to %d", early.goroutines, late.goroutines)
	case late.resident > early.resident+early.resident/4+8<<20:
		return fmt.Sprintf("the leader's memory grew from %s to %s", mebibytes(early.resident), mebibytes(late.resident))
	}
	return ""
}

func mebibytes(n int64) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }
