// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/usher-dev/usher/test/stage"
)

const (
	// PodsPerSmallSet is how many Pods each CloneSet of Options.Many has.
	PodsPerSmallSet = 2
	// manyShare is the part of them that is updated.
	manyShare = 100
	// idleFor is how long Usher is watched while nothing is to do.
	idleFor = 30 * time.Second
	// manyMemory limits Usher's memory, in MiB, for each thousand sets of PodsPerSmallSet Pods, beyond what it needs for none.
	manyMemory, noneMemory = 25, 75
)

// The steps with many small CloneSets.
const (
	stepManyCreate = "many sets are created"
	stepManyIdle   = "idle"
	stepManyStart  = "killed, and a set is updated meanwhile"
	stepManyUpdate = "in place, 1 % of the sets"
	stepManyRoll   = "in place, 10 % of the sets"
)

// manyScenario creates so many CloneSets of PodsPerSmallSet Pods, leaves Usher alone, kills it, and updates some of them.
func manyScenario(sets int) []step {
	all := sets * PodsPerSmallSet
	some := func(name string, sets, version int) step {
		pods := sets * PodsPerSmallSet
		return step{name: name, sets: sets, pods: pods, replicas: PodsPerSmallSet, version: version, others: all - pods}
	}
	created := some(stepManyCreate, sets, 1)
	created.create = true
	idle := some(stepManyIdle, 1, 1)
	idle.do = func(ctx context.Context, _ *measurement, _ step) error { return stage.Pause(ctx, idleFor) }
	started := some(stepManyStart, 1, 3)
	started.do = func(ctx context.Context, m *measurement, p step) error {
		if err := m.killUsher(); err != nil {
			return err
		}
		m.peak, p.do = 0, nil // The memory of the new process alone.
		_, err := m.perform(ctx, p)
		return err
	}
	return []step{
		created, idle, started,
		some(stepManyUpdate, max(sets/manyShare, 1), 5),
		some(stepManyRoll, max(10*sets/manyShare, 1), 7),
	}
}

// judgeMany judges measurements of many small CloneSets; others have none of these steps.
func judgeMany(steps []*result) []goal {
	created := largest(steps, stepManyCreate)
	if created == nil {
		return nil
	}
	memory, most := worst(steps, func(r *result) float64 { return r.peak })
	limit := noneMemory + manyMemory*created.sets/1000
	return []goal{{
		met: most < float64(limit), what: fmt.Sprintf("Usher's memory under %d MiB", limit),
		found: fmt.Sprintf("at most %.0f MiB, with %s sets, in %q", most, stage.Thousands(created.sets), memory.name),
	}}
}
