// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/demo/view"
	"github.com/usher-dev/usher/test/traffic"
)

// Outcome is the result of one CloneSet's requests.
type Outcome struct {
	// Name of the CloneSet, and what it demonstrates.
	Name, About string
	// JoinsOnly reports whether its YAML has no hook before deletion.
	JoinsOnly bool
	// Report are the counters.
	Report traffic.Report
	// Leaving counts the requests lost because a Pod left, in a set that has no hook
	// for that.
	Leaving int
}

// Held returns the lost requests that count: those that the set's hooks, or the lack of
// them, are responsible for.
func (o Outcome) Held() int { return o.Report.Total().Lost - o.Leaving }

// PhaseTime is how long a phase took.
type PhaseTime struct {
	Name string
	Took time.Duration
}

// RunResult is the outcome of one run.
type RunResult struct {
	// Hooks reports whether it was run with hooks.
	Hooks bool
	// Outcomes has an entry per CloneSet, Phases one per phase.
	Outcomes []Outcome
	Phases   []PhaseTime
	// Waited is what the objects reported that they waited for while the registry was
	// stopped; empty if it was not.
	Waited []string
}

// Sent counts the requests to the CloneSets with every hook, or with none. A CloneSet
// without a hook before deletion is reported separately.
func (r RunResult) Sent() int {
	return r.sum(func(o Outcome) int {
		if o.JoinsOnly {
			return 0
		}
		return o.Report.Total().Sent
	})
}

// Lost counts the lost requests that count, see Outcome.Held.
func (r RunResult) Lost() int { return r.sum(Outcome.Held) }

// DrainedSlow counts slow requests that an instance answered in full although it had
// left the registry in the meantime.
func (r RunResult) DrainedSlow() int {
	return r.sum(func(o Outcome) int { return o.Report.Total().DrainedSlow })
}

func (r RunResult) sum(of func(Outcome) int) int {
	sum := 0
	for _, outcome := range r.Outcomes {
		sum += of(outcome)
	}
	return sum
}

// lostIn counts the lost requests of a phase that count.
func (r RunResult) lostIn(phase string) int {
	return r.sum(func(o Outcome) int {
		if o.JoinsOnly {
			return 0 // per phase, it is unknown which side lost a request
		}
		lost := 0
		for _, section := range o.Report.Sections {
			if section.Name == phase {
				lost += section.Lost
			}
		}
		return lost
	})
}

// Result is the outcome of a demonstration.
type Result struct {
	// On and Off are the runs with and without hooks; nil if not run.
	On, Off *RunResult
}

// Failed reports whether the run with hooks lost a request.
func (r Result) Failed() bool { return r.On != nil && r.On.Lost() > 0 }

// write is the final report.
func (r Result) write(style view.Style) []string {
	lines := []string{""}
	lines = append(lines, r.requests(style)...)
	lines = append(lines, "")
	lines = append(lines, r.times(style)...)
	for _, note := range r.notes() {
		lines = append(lines, "", note)
	}
	return append(lines, "", r.verdict(style))
}

func (r Result) runs() []*RunResult {
	runs := []*RunResult{}
	for _, run := range []*RunResult{r.On, r.Off} {
		if run != nil {
			runs = append(runs, run)
		}
	}
	return runs
}

func title(run *RunResult) string {
	if run.Hooks {
		return "hooks on"
	}
	return "hooks off"
}

// requests is the table of requests by CloneSet.
func (r Result) requests(style view.Style) []string {
	columns := []view.Column{
		{Title: "CLONESET"},
		{Title: "REQUESTS", Right: true},
		{Title: "LOST", Right: true},
		{Title: "P50", Right: true, Expendable: 2},
		{Title: "P99", Right: true},
		{Title: "SLOW P50", Right: true, Expendable: 3},
		{Title: "SLOW P99", Right: true, Expendable: 1},
		{Title: "DRAINED", Right: true, Expendable: 4},
	}
	rows := [][]view.Cell{}
	for _, run := range r.runs() {
		last := ""
		for _, outcome := range run.Outcomes {
			if group := groupOf(run, outcome); group != last {
				rows = append(rows, []view.Cell{{Text: group, Paint: view.Bold}})
				last = group
			}
			rows = append(rows, outcomeRow(outcome))
		}
	}
	return view.Table(columns, rows, style)
}

func groupOf(run *RunResult, o Outcome) string {
	if o.JoinsOnly {
		return "preNormal hook alone"
	}
	return title(run)
}

func outcomeRow(o Outcome) []view.Cell {
	total := o.Report.Total()
	lost := view.Cell{Text: view.Thousands(total.Lost), Paint: view.Green}
	switch {
	case o.Held() > 0:
		lost.Paint = view.Red
	case total.Lost > 0:
		lost.Paint = view.Yellow
	}
	return []view.Cell{
		{Text: "  " + o.Name},
		{Text: view.Thousands(total.Sent)},
		lost,
		{Text: milliseconds(total.Fast.Percentile(50))},
		{Text: milliseconds(total.Fast.Percentile(99))},
		{Text: milliseconds(total.Slow.Percentile(50))},
		{Text: milliseconds(total.Slow.Percentile(99))},
		{Text: view.Thousands(total.Drained)},
	}
}

func milliseconds(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.2fs", d.Seconds())
	}
}

// times is the table of the phases.
func (r Result) times(style view.Style) []string {
	columns := []view.Column{{Title: "PHASE"}}
	for _, run := range r.runs() {
		columns = append(columns, view.Column{Title: strings.ToUpper(title(run)), Right: true}, view.Column{Title: "LOST", Right: true})
	}
	rows := [][]view.Cell{}
	for _, name := range phaseNames() {
		row := []view.Cell{{Text: phaseTitle(name)}}
		ran := false
		for _, run := range r.runs() {
			took := run.took(name)
			ran = ran || took > 0
			lost := view.Cell{Text: view.Thousands(run.lostIn(name)), Paint: view.Green}
			if run.lostIn(name) > 0 {
				lost.Paint = view.Red
			}
			row = append(row, view.Cell{Text: seconds(took)}, lost)
		}
		if ran {
			rows = append(rows, row)
		}
	}
	return view.Table(columns, rows, style)
}

func (r RunResult) took(phase string) time.Duration {
	for _, p := range r.Phases {
		if p.Name == phase {
			return p.Took
		}
	}
	return 0
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

// notes explain the numbers.
func (r Result) notes() []string {
	notes := []string{}
	for _, run := range r.runs() {
		for _, o := range run.Outcomes {
			if o.JoinsOnly {
				notes = append(notes, fmt.Sprintf(
					"%s is the proposal's YAML unchanged: its preNormal hook covers how Pods join, where %s requests were lost, and nothing\n"+
						"covers how they leave, where %s were. %s-drain has a preDelete hook for that.",
					o.Name, view.Thousands(o.Held()), view.Thousands(o.Leaving), o.Name))
			}
		}
		if reasons := run.reasons(); reasons != "" {
			notes = append(notes, fmt.Sprintf("Lost with %s: %s.", title(run), reasons))
		}
	}
	return notes
}

// reasons lists why the requests that count were lost, the most common reason first.
func (r RunResult) reasons() string {
	counts := map[string]int{}
	for _, o := range r.Outcomes {
		if o.JoinsOnly {
			continue
		}
		for _, reason := range o.Report.Reasons {
			counts[reason.Reason] += reason.Count
		}
	}
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(a, b))
	})
	parts := []string{}
	for _, name := range names {
		parts = append(parts, view.Thousands(counts[name])+" × "+name)
	}
	return strings.Join(parts, ", ")
}

// verdict is the last line.
func (r Result) verdict(style view.Style) string {
	parts := []string{}
	for _, run := range r.runs() {
		paint := view.Green
		if run.Lost() > 0 {
			paint = view.Red
		}
		text := fmt.Sprintf("%s: %s requests, %s lost", title(run), view.Thousands(run.Sent()), view.Thousands(run.Lost()))
		if run.Hooks && run.DrainedSlow() > 0 {
			text += fmt.Sprintf(", %s slow ones drained", view.Thousands(run.DrainedSlow()))
		}
		parts = append(parts, style.Paint(paint, text))
	}
	return strings.Join(parts, "   ")
}
