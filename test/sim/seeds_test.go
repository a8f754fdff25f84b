// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	seeds = flag.Int("seeds", 600, "how many random schedules TestSeeds runs")
	first = flag.Uint64("first", 1, "the first seed of TestSeeds")
)

// TestSeeds runs random schedules with faults. To see one again:
//
//	go -C test test ./sim -run TestSeeds -first SEED -seeds 1
func TestSeeds(t *testing.T) {
	failures := runSeeds(*first, *seeds, nil)
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
func runSeeds(first uint64, count int, change func(*Config)) []failure {
	var (
		mu       sync.Mutex
		failures []failure
		next     atomic.Uint64
		workers  sync.WaitGroup
	)
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for {
				n := next.Add(1) - 1
				if n >= uint64(count) { // a count is not negative
					return
				}
				if v := Random(first+n, change).Run(); v != nil {
					mu.Lock()
					failures = append(failures, failure{first + n, v})
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	slices.SortFunc(failures, func(a, b failure) int { return int(a.seed) - int(b.seed) }) // small
	return failures
}
