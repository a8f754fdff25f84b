// SPDX-License-Identifier: Apache-2.0

package bench

import (
	_ "embed"
	"fmt"
	"math"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/stage"
)

// rangesYAML are the ranges, for people to read, too.
//
//go:embed ranges.yaml
var rangesYAML []byte

// limits are the ranges of a file.
type limits struct {
	Ranges []limit `json:"ranges"`
}

// limit is a range: the worst number that was measured, and a margin.
type limit struct {
	// Number is one of numbers, Step the name of a step as the tables have it, and Size its number of Pods.
	Number string `json:"number"`
	Step   string `json:"step"`
	Size   int    `json:"size"`
	// AtMost or AtLeast is the limit, in the number's unit.
	AtMost  float64 `json:"atMost"`
	AtLeast float64 `json:"atLeast"`
	// Margin is how many per cent worse than the worst of the runs a number may be.
	Margin float64 `json:"margin"`
	Runs   []found `json:"runs"`
	Why    string  `json:"why"`
}

// found is what a run has measured.
type found struct {
	Date    string  `json:"date"`
	Found   float64 `json:"found"`
	Machine string  `json:"machine"`
}

// number is what can be limited.
type number struct {
	// title says what it is, with its unit.
	title string
	of    func(*result) float64
}

var numbers = map[string]number{
	"writes":   {"writes a Pod", func(r *result) float64 { return r.perPod(float64(sum(r.own.writes))) }},
	"rejected": {"% of the writes are rejected", func(r *result) float64 { return 100 * r.own.rejectedShare() }},
	"cpu":      {"ms of Usher's CPU time a Pod", func(r *result) float64 { return milliseconds(r.cpuPerPod()) }},
	"memory":   {"MiB of Usher's memory", func(r *result) float64 { return r.peak }},
	"out":      {"ms until a Pod is ready again, p99", func(r *result) float64 { return milliseconds(r.out.Percentile(99)) }},
	"rate": {"% of the Pods a second that the API server takes", func(r *result) float64 {
		return 100 * r.perSecond() * writesInPlace / r.around.perSecond()
	}},
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ranges are those of the file, which a test has read.
func ranges() []limit {
	all, err := readRanges(rangesYAML)
	if err != nil {
		panic(fmt.Errorf("ranges.yaml: %w", err))
	}
	return all
}

// readRanges reads a file of ranges. The error says which one is wrong, and why.
func readRanges(text []byte) ([]limit, error) {
	var l limits
	if err := yaml.UnmarshalStrict(text, &l); err != nil {
		return nil, err
	}
	for _, one := range l.Ranges {
		if wrong := one.wrong(); wrong != "" {
			return nil, fmt.Errorf("range of %s in %q with %d Pods: %s", one.Number, one.Step, one.Size, wrong)
		}
	}
	return l.Ranges, nil
}

// wrong says what is wrong with the range; empty if nothing is.
func (l limit) wrong() string {
	_, known := numbers[l.Number]
	switch {
	case !known:
		return "there is no such number"
	case (l.AtMost == 0) == (l.AtLeast == 0):
		return "set atMost or atLeast, and not both"
	case len(l.Runs) == 0 || l.Margin <= 0 || l.Why == "":
		return "it needs runs, a margin, and why it matters"
	}
	if want := l.derived(); math.Abs(want-max(l.AtMost, l.AtLeast)) > rounding*want {
		return fmt.Sprintf("its limit is %g, and the worst of its runs with the margin %.4g: change one of them", max(l.AtMost, l.AtLeast), want)
	}
	return ""
}

// rounding is how far a limit may be from what it comes from, so that people can read it.
const rounding = 0.02

// derived is what the limit comes from.
func (l limit) derived() float64 {
	runs := list.Map(l.Runs, func(r found) float64 { return r.Found })
	if l.AtLeast > 0 {
		return slices.Min(runs) * (1 - l.Margin/100)
	}
	return slices.Max(runs) * (1 + l.Margin/100)
}

// judgeRanges compares results with the ranges. A range of a step or a size that was not measured is left out.
func judgeRanges(results []*result, ranges []limit) (goals []goal) {
	for _, l := range ranges {
		i := slices.IndexFunc(results, func(r *result) bool {
			return !r.alone && r.name == l.Step && r.size == l.Size && r.server == "" && !r.timed
		})
		if i < 0 {
			continue
		}
		n := numbers[l.Number]
		value := n.of(results[i])
		word, met := "at most", value <= l.AtMost
		if l.AtLeast > 0 {
			word, met = "at least", value >= l.AtLeast
		}
		goals = append(goals, goal{
			met: met, ranged: true,
			what:  fmt.Sprintf("range: %s, %s Pods: %s %g %s", l.Step, stage.Thousands(l.Size), word, max(l.AtMost, l.AtLeast), n.title),
			found: fmt.Sprintf("%.4g; the worst of %d runs and %g %%", value, len(l.Runs), l.Margin),
		})
	}
	return goals
}
