// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/stage"
)

const (
	// deadTime is how long Usher stays dead.
	deadTime = time.Second
	// longestAim is the latest time after the start of an operation at which Usher is
	// killed.
	longestAim = time.Second
)

// stops reports whether the registry is stopped in a phase.
func (r *run) stops(name phase) bool {
	return r.options.StopRegistry && r.hooks && name == phaseInPlace
}

// disturb does what the options ask for during a phase.
func (r *run) disturb(ctx context.Context, name phase, acting []*actor) error {
	if r.stops(name) {
		if err := r.stopRegistry(ctx, acting[0].name); err != nil {
			return err
		}
	}
	if r.options.KillUsher && r.hooks {
		return r.killUsher(ctx)
	}
	return nil
}

// killUsher kills Usher once an operation is in progress, and restarts it.
func (r *run) killUsher(ctx context.Context) error {
	err := r.board.await(ctx, r.options.pace.bound, "a Pod to be under way", func() bool { return r.board.underWay("") })
	if err != nil {
		return err
	}
	if err := stage.Pause(ctx, rand.N(longestAim)); err != nil {
		return err
	}
	if err := r.KillUsher(); err != nil {
		return err
	}
	r.board.say("✗  Usher is killed (SIGKILL)")
	if err := stage.Pause(ctx, deadTime); err != nil {
		return err
	}
	if err := r.StartUsher(r.usherArgs...); err != nil {
		return err
	}
	r.board.say("✓  Usher is started again")
	return nil
}

// stopRegistry stops the registry while a Pod of the set drains, and checks that no Pod
// is updated or deleted while nobody can know its registration.
func (r *run) stopRegistry(ctx context.Context, set string) error {
	draining := func() bool { return r.board.draining(set) }
	if err := r.board.await(ctx, r.options.pace.bound, "a Pod of "+set+" to drain", draining); err != nil {
		return err
	}
	// A graceful stop would take as long as the whole drain, because its clients watch.
	if err := r.registry.Kill(); err != nil {
		return fmt.Errorf("stop the registry: %w", err)
	}
	before := r.board.fingerprint()
	r.announce(fmt.Sprintf("the registry is stopped for %s: no Pod may be updated or deleted now", seconds(r.options.pace.outage)))
	if err := r.watchOutage(ctx); err != nil {
		return err
	}
	after := r.board.fingerprint()
	if err := r.registry.Restart(ctx); err != nil {
		return fmt.Errorf("start the registry again: %w", err)
	}
	r.announce("")
	if !slices.Equal(before, after) {
		return fmt.Errorf("pods have changed while the registry was stopped:\n  before: %s\n  after:  %s",
			strings.Join(before, "\n          "), strings.Join(after, "\n          "))
	}
	r.board.say("✓  the registry is back; meanwhile no Pod was updated or deleted")
	return nil
}

// watchOutage waits out the outage and reports what is waited for.
func (r *run) watchOutage(ctx context.Context) error {
	end := time.Now().Add(r.options.pace.outage)
	for time.Now().Before(end) {
		if err := stage.Pause(ctx, min(time.Second, time.Until(end))); err != nil {
			return err
		}
		for _, line := range r.board.waitingFor() {
			if !slices.Contains(r.waited, line) {
				r.waited = append(r.waited, line)
				r.board.say("   %s", line)
			}
		}
	}
	return nil
}

// announce shows a note while it applies, and removes it afterwards.
func (r *run) announce(note string) {
	r.mu.Lock()
	r.note = note
	r.mu.Unlock()
	if note != "" {
		r.board.say("✗  %s", note)
	}
}
