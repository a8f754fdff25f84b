// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"fmt"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// at is so many milliseconds after the epoch.
func at(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }

// TestBegin: a pass waits until its pause is over, an urgent one until the shorter pause is over, and not at all if
// the wait is within the slack. The pass that begins takes the urgency with it, one that waits does not.
func TestBegin(t *testing.T) {
	type wait struct{ now, want int }
	for name, test := range map[string]struct {
		slack         int
		next, soonest int
		hurry         bool
		waits         []wait
	}{
		"no pause":                       {0, 0, 0, false, []wait{{0, 0}}},
		"a pause":                        {0, 300, 100, false, []wait{{0, 300}, {299, 1}, {300, 0}, {500, 0}}},
		"an urgent pass":                 {0, 300, 100, true, []wait{{0, 100}, {99, 1}, {100, 0}}},
		"the pass after an urgent one":   {0, 300, 100, true, []wait{{100, 0}, {100, 200}}},
		"a pause within the slack":       {10, 300, 300, false, []wait{{289, 11}, {290, 0}, {300, 0}}},
		"urgent, and within the slack":   {10, 300, 100, true, []wait{{89, 11}, {90, 0}, {90, 210}}},
		"a pause that was over long ago": {0, -300, -300, true, []wait{{0, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Pace{Slack: time.Duration(test.slack) * time.Millisecond}
			p.Rest(at(test.next), at(test.soonest))
			if test.hurry {
				p.Hurry()
			}
			for _, w := range test.waits {
				checktest.Same(t, fmt.Sprintf("the wait after %d ms", w.now), time.Duration(w.want)*time.Millisecond, p.Begin(at(w.now)))
			}
		})
	}
}

// TestUrgent: what is urgent stays so until a pass begins, and a Pace that has something to remember is not idle.
func TestUrgent(t *testing.T) {
	p := &Pace{}
	state := func(ms int) []bool { return []bool{p.Urgent(), p.Idle(at(ms))} }
	checktest.Same(t, "urgent and idle at first", []bool{false, true}, state(0))
	p.Hurry()
	checktest.Same(t, "after an event", []bool{true, false}, state(0))
	p.Rest(at(300), at(100))
	checktest.Same(t, "after the end of a pass that had begun", []bool{true, false}, state(0))
	p.Begin(at(50))
	checktest.Same(t, "after a pass that has to wait", []bool{true, false}, state(50))
	p.Begin(at(100))
	checktest.Same(t, "after the next pass has begun", []bool{false, false}, state(100))
	checktest.Same(t, "at the end of the pause", []bool{false, false}, state(300))
	checktest.Same(t, "after the pause", []bool{false, true}, state(301))
	p.Rest(at(900), at(900))
	p.Reset()
	checktest.Same(t, "without a pause", []bool{false, true}, state(301))
}
