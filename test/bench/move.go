// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/usher-dev/usher/test/servers"
)

const (
	// fifth divides the Pods: that share changes in the moves in which Usher is killed.
	fifth = 5
	// kills is how often it is killed, spread evenly over the move.
	kills = 2
	// afterRepair is how much longer than a repair interval to wait at rest: the next
	// sweep removes what a sweep suspects.
	afterRepair = 5 * time.Second
)

// Names of moves used by verdicts.
const (
	moveRest    = "killed at rest"
	moveControl = "control: one entry taken out by hand"
)

// move is one change of the CloneSet, or none.
type move struct {
	name string
	pods int // how many it moves
	// replicas, version and old are what the CloneSet asks for: old is the number of
	// Pods that keep the previous version.
	replicas, version, old int
	// joining and leaving are what the Pods do; both in an update.
	joining, leaving bool
	killed           bool
}

// moves are those of a CloneSet of n Pods, in order. Each begins where the previous one
// ended.
func moves(n int) []move {
	some := n / fifth
	return []move{
		{name: "register", pods: n, replicas: n, version: 1, joining: true},
		{name: moveRest, pods: n, replicas: n, version: 1},
		{name: "fail over", pods: n, replicas: n, version: 2, joining: true, leaving: true},
		{name: "deregister a fifth, killed twice", pods: some, replicas: n - some, version: 2, leaving: true, killed: true},
		{name: "register a fifth, killed twice", pods: some, replicas: n, version: 2, joining: true, killed: true},
		{name: "fail over a fifth, killed twice", pods: some, replicas: n, version: 3, old: n - some,
			joining: true, leaving: true, killed: true},
		{name: moveControl, pods: 1, replicas: n, version: 3, old: n - some},
		{name: "deregister", pods: n, version: 3, leaving: true},
	}
}

// move makes one change and waits until it is done.
func (t *trial) move(ctx context.Context, p move) (OperatorPhase, error) {
	t.say("%s, %s Pods: %s", t.server.Name(), group(p.pods), p.name)
	ctx, cancel := t.bound(ctx)
	defer cancel()
	t.witness.begin()
	done := OperatorPhase{Name: p.name, Pods: p.pods}
	calls, err := t.server.Calls(ctx)
	if err != nil {
		return done, err
	}
	before, err := t.cpu()
	if err != nil {
		return done, err
	}
	began := time.Now()
	if err := t.do(ctx, p); err != nil {
		return done, err
	}
	done.Seconds = time.Since(began).Seconds()
	done.PodsPerSecond = float64(p.pods) / done.Seconds
	after, err := t.cpu()
	if err != nil {
		return done, err
	}
	done.CPU = after.since(before)
	return done, t.account(ctx, &done, calls)
}

// do makes the change, and returns when the Pods and the registry have reached its
// result.
func (t *trial) do(ctx context.Context, p move) error {
	switch p.name {
	case moveRest:
		return t.rest(ctx)
	case moveControl:
		return t.control(ctx, p)
	}
	if err := t.ask(ctx, p); err != nil {
		return err
	}
	if p.killed {
		if err := t.killDuring(ctx, p); err != nil {
			return err
		}
	}
	if err := t.awaitPods(ctx, p); err != nil {
		return err
	}
	return t.witness.await(ctx, p.replicas)
}

// killDuring kills Usher when parts of the move are done.
func (t *trial) killDuring(ctx context.Context, p move) error {
	for i := range kills {
		part := max((i+1)*p.pods/(kills+1), 1)
		joined, left := 0, part
		if !p.leaving {
			joined, left = part, 0
		}
		if err := t.witness.awaitMoves(ctx, joined, left); err != nil {
			return err
		}
		if err := t.restart(); err != nil {
			return err
		}
	}
	return nil
}

// rest kills Usher while there is nothing to do, and waits until it has compared the
// registry with the Pods twice.
func (t *trial) rest(ctx context.Context) error {
	if err := t.restart(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(t.options.Repair + afterRepair):
		return nil
	}
}

// control removes an entry by hand, which the witness must notice, and waits until the
// operator has restored it.
func (t *trial) control(ctx context.Context, p move) error {
	uid := t.witness.anyone()
	if uid == "" {
		return errors.New("there is no entry that could be taken out")
	}
	if err := t.server.Evict(ctx, string(uid)); err != nil {
		return err
	}
	if err := t.witness.awaitMoves(ctx, 1, 1); err != nil {
		return err
	}
	return t.witness.await(ctx, p.replicas)
}

// awaitPods waits until all Pods are at rest, the updated ones with the new image and
// the others with the previous one.
func (t *trial) awaitPods(ctx context.Context, p move) error {
	return t.crowd.wait(ctx, func() string {
		updated, old := t.crowd.settled[image(p.version)], t.crowd.settled[image(p.version-1)]
		if len(t.crowd.members) == p.replicas && updated == p.replicas-p.old && (p.old == 0 || old == p.old) {
			return ""
		}
		return fmt.Sprintf("of %d Pods %d are ready; at rest are %d of version %d, and %d of the one before; there should be %d and %d",
			len(t.crowd.members), t.crowd.ready, updated, p.version, old, p.replicas-p.old, p.old)
	})
}

// account adds what is known only afterwards.
func (t *trial) account(ctx context.Context, done *OperatorPhase, calls servers.Calls) error {
	var err error
	if done.Usher, done.OtherWrites, err = t.audit.untilQuiet(ctx); err != nil {
		return err
	}
	now, err := t.server.Calls(ctx)
	if err != nil {
		return err
	}
	done.Calls = now.Since(calls)
	said, err := t.witness.end(ctx)
	if err != nil {
		return err
	}
	done.Joined, done.Left, done.Wrong = said.joined, said.left, said.wrong
	err = t.notePeak()
	done.PeakMiB = t.peak
	return err
}

// alone measures what the registry can do for a plain client.
func (t *trial) alone(ctx context.Context, n int) ([]Ceiling, error) {
	var ceilings []Ceiling
	for _, a := range []ask{{name: "put", send: plain(t.server.Put)}, {name: "remove", send: plain(t.server.Remove)}} {
		t.say("%s, no controller: %s %s entries", t.server.Name(), a.name, group(n))
		before, err := t.cpu()
		if err != nil {
			return ceilings, err
		}
		began := time.Now()
		latencies, _, err := sendAll(ctx, a, n)
		took := time.Since(began)
		if err != nil {
			return ceilings, fmt.Errorf("%s, no controller, %s: %w", t.server.Name(), a.name, err)
		}
		after, err := t.cpu()
		if err != nil {
			return ceilings, err
		}
		ceilings = append(ceilings, Ceiling{
			Name: a.name, Seconds: took.Seconds(), SettledSeconds: took.Seconds(),
			PerSecond: float64(n) / took.Seconds(), Latency: distribute(latencies), CPU: after.since(before),
		})
	}
	return ceilings, nil
}

// plain is a request whose answer has no version.
func plain(send func(context.Context, string) error) func(context.Context, string) (uint64, error) {
	return func(ctx context.Context, name string) (uint64, error) { return 0, send(ctx, name) }
}
