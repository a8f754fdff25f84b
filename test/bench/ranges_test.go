// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
)

// TestRanges: the ranges are complete, and about steps that are measured by default.
func TestRanges(t *testing.T) {
	ranges := checktest.Must(readRanges(rangesYAML))(t)
	steps := list.Map(cloneSetScenario(2000), func(s step) string { return s.name })
	for _, l := range ranges {
		if !slices.Contains(steps, l.Step) || l.Size != 2000 {
			t.Errorf("%s of %q with %d Pods is not measured by default", l.Number, l.Step, l.Size)
		}
	}
	if len(ranges) < 8 {
		t.Errorf("there are %d ranges", len(ranges))
	}
}

const someRanges = `
ranges:
- {number: writes, step: in place, size: 2000, atMost: 3.3, margin: 10, why: load, runs: [{date: "1", found: 2, machine: a}, {date: "2", found: 3, machine: a}]}
- {number: rate, step: in place, size: 2000, atLeast: 72, margin: 10, why: speed, runs: [{date: "1", found: 80, machine: a}, {date: "2", found: 90, machine: a}]}
- {number: memory, step: in place, size: 2000, atMost: 96, margin: 20, why: room, runs: [{date: "1", found: 80, machine: a}]}
- {number: out, step: in place, size: 2000, atMost: 400, margin: 100, why: callers, runs: [{date: "1", found: 200, machine: a}]}
- {number: cpu, step: in place, size: 2000, atMost: 20, margin: 100, why: cost, runs: [{date: "1", found: 10, machine: a}]}
- {number: rejected, step: in place, size: 2000, atMost: 0.2, margin: 100, why: load, runs: [{date: "1", found: 0.1, machine: a}]}
`

// TestJudgeRanges: a number within its range is met, one beyond it is missed, and steps of other sizes are not judged.
func TestJudgeRanges(t *testing.T) {
	ranges := checktest.Must(readRanges([]byte(someRanges)))(t)
	results := func(change func(r *result)) []*result {
		return cloneSetResults(2000, func(_, u, _ *result) {
			u.own = apiRequests{writes: map[string]int{"patch pods": 6000}, rejected: map[string]int{"patch pods 409": 6}}
			u.cpu[usher], u.peak, u.out = time.Duration(u.pods)*10*time.Millisecond, 80, []time.Duration{200 * time.Millisecond}
			change(u)
		})
	}
	for name, c := range map[string]struct {
		change func(r *result)
		want   string
	}{
		"as it was":  {func(*result) {}, ""},
		"writes":     {func(r *result) { r.own.writes["patch pods"] = 6800 }, "3.4; the worst of 2 runs and 10 %"},
		"rate":       {func(r *result) { r.wall = r.wall * 10 / 7 }, "70; the worst of 2 runs and 10 %"},
		"memory":     {func(r *result) { r.peak = 97 }, "97; the worst of 1 runs and 20 %"},
		"out":        {func(r *result) { r.out[0] = 401 * time.Millisecond }, "401; the worst of 1 runs and 100 %"},
		"cpu":        {func(r *result) { r.cpu[usher] *= 3 }, "30; the worst of 1 runs and 100 %"},
		"rejected":   {func(r *result) { r.own.rejected["patch pods 409"] = 30 }, "0.5; the worst of 1 runs and 100 %"},
		"other size": {func(r *result) { r.size, r.peak = 500, 1000 }, ""},
	} {
		r := &Report{goals: judgeRanges(results(c.change), ranges)}
		checktest.Same(t, name+": missed", c.want, missed(r.goals))
		if out, err := r.OutOfRange(); out != (c.want != "") || (err != nil) != (name == "other size") {
			t.Errorf("%s: it is out of range: %t, %v", name, out, err)
		}
	}
}

// TestWrongRanges: a range says from which runs its limit comes, and by which margin.
func TestWrongRanges(t *testing.T) {
	first := strings.SplitAfter(someRanges, "\n")[:3]
	good := strings.Join(first, "")
	checktest.Must(readRanges([]byte(good)))(t)
	for old, test := range map[string][2]string{
		"number: writes":                      {"number: reads", "no such number"},
		"atMost: 3.3":                         {"atMost: 3.4", "change one of them"},
		"atMost: 3.3, ":                       {"", "set atMost or atLeast"},
		"margin: 10, ":                        {"", "it needs runs, a margin"},
		"why: load, ":                         {"", "why it matters"},
		"size: 2000":                          {"pods: 2000", "unknown field"},
		"{date: \"2\", found: 3, machine: a}": {"", "change one of them"},
	} {
		_, err := readRanges([]byte(strings.Replace(good, old, test[0], 1)))
		checktest.Says(t, "the error", err, test[1])
	}
}
