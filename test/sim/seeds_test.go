// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
)

var (
	seeds = flag.Int("seeds", 600, "how many random schedules TestSeeds runs")
	first = flag.Uint64("first", 1, "the first seed of TestSeeds")
)

// TestSeeds runs random schedules with faults. To see one again:
//
//	go -C test test ./sim -run TestSeeds -first SEED -seeds 1
func TestSeeds(t *testing.T) {
	failures := runSeeds(*first, *seeds)
	for i, f := range failures {
		if i < 3 {
			t.Errorf("seed %d: %v\n%s", f.seed, f.violation, storyOf(f.seed))
			continue
		}
		t.Errorf("seed %d: %v", f.seed, f.violation)
	}
}

type failure struct {
	seed      uint64
	violation *Violation
}

// storyOf returns the story of a seed.
func storyOf(seed uint64) string {
	s := Random(seed, nil)
	v := s.Run()
	return fmt.Sprintf("%s%v", s.World.Story(), v)
}

// runSeeds runs random schedules on all processors.
func runSeeds(first uint64, count int) []failure {
	var (
		mu       sync.Mutex
		failures []failure
		workers  errgroup.Group
	)
	workers.SetLimit(runtime.GOMAXPROCS(0))
	for seed := first; seed < first+uint64(count); seed++ { // a count is not negative
		workers.Go(func() error {
			if v := Random(seed, nil).Run(); v != nil {
				mu.Lock()
				defer mu.Unlock()
				failures = append(failures, failure{seed, v})
			}
			return nil
		})
	}
	_ = workers.Wait() // none fails
	slices.SortFunc(failures, func(a, b failure) int { return cmp.Compare(a.seed, b.seed) })
	return failures
}
