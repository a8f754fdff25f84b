// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/usher-dev/usher/test/stage"
)

// The kinds of faults.
const (
	usherKilled   = "Usher killed"
	leaderStopped = "leader stopped"
	apiDown       = "API server stopped"
	apiSlow       = "API server slow"
	registryDown  = "registry stopped"
	registrySlow  = "registry slow"
	watchesCut    = "watches cut"
	nodeLost      = "node lost"

	// Those of a highly available control plane.
	memberLost    = "member of etcd lost"
	leaderMoved   = "leader of etcd moved"
	memberLags    = "member of etcd lags"
	oneKilled     = "one API server killed"
	oneDrained    = "one API server drained"
	oneApart      = "Usher apart from one API server"
	registryApart = "Usher apart from a registry"
)

// kind is how often a fault comes, and how long it lasts.
type kind struct {
	name             string
	shortest, length time.Duration
	// ends means that the fault ends a process of Usher. Such faults come in the first half of a run,
	// so that in the second half a process lives long enough to show a leak.
	ends bool
	// unguards means that a deletion may pass without the guard meanwhile: see docs/guard.md.
	unguards bool
}

// usherFaults come one after another, and nodeFaults at the same time.
var usherFaults = []kind{
	{name: usherKilled, ends: true, unguards: true},
	{name: leaderStopped, ends: true, unguards: true},
	{name: apiDown, shortest: 2 * time.Second, length: 6 * time.Second, ends: true, unguards: true},
	{name: apiSlow, shortest: 5 * time.Second, length: 10 * time.Second, unguards: true},
	{name: registryDown, shortest: 3 * time.Second, length: 12 * time.Second},
	{name: registrySlow, shortest: 5 * time.Second, length: 10 * time.Second},
	{name: watchesCut, unguards: true},
}

// haFaults are those of a highly available control plane: see kinds.
var haFaults = []kind{
	{name: memberLost, shortest: 3 * time.Second, length: 12 * time.Second, ends: true},
	{name: leaderMoved},
	{name: memberLags, shortest: 5 * time.Second, length: 10 * time.Second},
	{name: oneKilled, shortest: 2 * time.Second, length: 10 * time.Second},
	{name: oneDrained, shortest: 2 * time.Second, length: 10 * time.Second},
	{name: oneApart, shortest: 5 * time.Second, length: 10 * time.Second, ends: true, unguards: true},
	{name: registryApart, shortest: 5 * time.Second, length: 10 * time.Second},
}

// A node is lost for longer than the control plane's grace period of 50 s.
var nodeFaults = []kind{{name: nodeLost, shortest: 60 * time.Second, length: 15 * time.Second}}

// fault is a drawn fault.
type fault struct {
	kind
	// after is the pause before it, takes how long it lasts.
	after, takes time.Duration
	// which is the replica, the registry or the API server.
	which int
	// roundTrip is how slow a connection is.
	roundTrip time.Duration
}

func (f fault) String() string {
	text := f.name
	switch f.name {
	case usherKilled, registryDown, registrySlow, memberLost, memberLags, oneKilled, oneDrained, oneApart, registryApart:
		text += fmt.Sprintf(" (%d)", f.which+1)
	}
	if f.takes > 0 {
		text += " for " + stage.Seconds(f.takes)
	}
	if f.name == memberLags {
		text += ", by " + stage.Milliseconds(f.roundTrip)
	}
	if f.name == apiSlow || f.name == registrySlow {
		text += ", round trips of " + stage.Milliseconds(f.roundTrip)
	}
	return text
}

// deck draws faults: all kinds in a random order, and then again.
type deck struct {
	random *rand.Rand
	kinds  []kind
	left   []int
}

// draw draws a fault. With spare, it draws none that ends Usher.
func (d *deck) draw(spare bool) fault {
	for {
		if len(d.left) == 0 {
			d.left = d.random.Perm(len(d.kinds))
		}
		f := fault{
			kind: d.kinds[d.left[0]], after: 3*time.Second + within(d.random, 7*time.Second), which: d.random.IntN(2),
			roundTrip: 100*time.Millisecond + within(d.random, 700*time.Millisecond).Round(time.Millisecond),
		}
		if d.left = d.left[1:]; f.length > 0 {
			f.takes = (f.shortest + within(d.random, f.length)).Round(100 * time.Millisecond)
		}
		if f.name == nodeLost {
			f.after += f.takes
		}
		if !f.ends || !spare {
			return f
		}
	}
}

// disturb causes faults, one after the other, until the requests are through.
func (s *soak) disturb(ctx context.Context, d *deck) error {
	for {
		f := d.draw(s.progress() >= 0.5)
		if s.pause(ctx, f.after) {
			return context.Cause(ctx)
		}
		if err := s.cause(ctx, f); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
}

// cause causes a fault, and returns when it is over and Usher is whole again.
func (s *soak) cause(ctx context.Context, f fault) error {
	if f.unguards {
		s.guarded.Lock()
		defer s.guarded.Unlock()
	}
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	s.say("fault: %s", f)
	s.count(s.faults, f.name)
	end, err := s.begin(ctx, f, leader)
	if err != nil {
		return err
	}
	if err := stage.Pause(ctx, f.takes); err != nil {
		return err
	}
	if err := end(ctx); err != nil {
		return err
	}
	_, err = s.leader(ctx)
	return err
}

// begin begins a fault.
func (s *soak) begin(ctx context.Context, f fault, leader *replica) (end func(context.Context) error, err error) {
	registry := s.registries[f.which]
	switch f.name {
	case usherKilled:
		return nothing, s.replicas[f.which].process.Load().Kill()
	case leaderStopped:
		return func(ctx context.Context) error { return leader.process.Load().Stop(ctx, stopGrace) }, nil
	case apiDown:
		return s.Cluster.StartAPIServer, s.Cluster.KillAPIServer()
	case registryDown:
		return registry.Restart, registry.Kill()
	case registrySlow:
		registry.link.Slow(f.roundTrip)
		return func(context.Context) error { registry.link.Slow(0); return nil }, nil
	case nodeLost:
		s.node.Down(true)
		return func(context.Context) error { s.node.Down(false); return nil }, nil
	}
	if begin, found := s.haBegins()[f.name]; found {
		return begin(ctx, f)
	}
	return s.disturbLinks(f), nil
}

// disturbLinks begins a fault of Usher's connections to the API server.
func (s *soak) disturbLinks(f fault) (end func(context.Context) error) {
	delay := map[string]time.Duration{apiSlow: f.roundTrip}[f.name]
	for _, r := range s.replicas {
		r.link.Slow(delay)
		if f.name == watchesCut {
			r.link.Cut()
		}
	}
	if f.name == watchesCut {
		s.node.Cut()
		s.registries[0].link.Cut()
		s.registries[1].link.Cut()
	}
	return func(context.Context) error {
		for _, r := range s.replicas {
			r.link.Slow(0)
		}
		return nil
	}
}

// within draws a time below a bound.
func within(random *rand.Rand, bound time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(bound)))
}
