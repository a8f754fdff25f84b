// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/page"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// Outcome is the result of one workload's requests.
type Outcome struct {
	story
	// Report are the counters.
	Report traffic.Report
	// Leaving counts the requests lost because a Pod left, in a set that has no hook
	// for that.
	Leaving int
}

// Charged returns the lost requests that the set's hooks, or the lack of them, are
// responsible for.
func (o Outcome) Charged() int { return o.Report.Total().Lost - o.Leaving }

// RunResult is the outcome of one run.
type RunResult struct {
	// Hooks reports whether it was run with hooks.
	Hooks bool
	// Outcomes has an entry per workload, Took one per phase.
	Outcomes []Outcome
	Took     map[phase]time.Duration
	// Waited lists the waits that the objects reported while the registry was stopped.
	Waited []string
}

// Lost counts the lost requests that the hooks, or the lack of them, are responsible for.
func (r *RunResult) Lost() int { return r.sum(Outcome.Charged) }

// DrainedSlow counts slow requests that an instance answered in full although it had
// left the registry in the meantime.
func (r *RunResult) DrainedSlow() int {
	return r.sum(func(o Outcome) int { return o.Report.Total().DrainedSlow })
}

func (r *RunResult) sum(of func(Outcome) int) int {
	sum := 0
	for _, outcome := range r.Outcomes {
		sum += of(outcome)
	}
	return sum
}

// hooked joins the requests to workloads with every hook, or with none. A workload without a hook
// before deletion is reported separately: the counters by phase and reason do not show whether a
// request was lost because a Pod joined or because it left.
func (r *RunResult) hooked() (all traffic.Report) {
	for _, o := range r.Outcomes {
		if !o.JoinsOnly {
			all = all.Add(o.Report)
		}
	}
	return all
}

// lostIn counts the lost requests of a phase.
func (r *RunResult) lostIn(name phase) (lost int) {
	for _, section := range r.hooked().Sections {
		if section.Name == string(name) {
			lost += section.Lost
		}
	}
	return lost
}

// Result is the outcome of a demonstration: the run with hooks, and then the one without.
type Result struct{ Runs []*RunResult }

// Lost counts the requests that were lost with hooks.
func (r Result) Lost() int {
	lost := 0
	for _, run := range r.Runs {
		if run.Hooks {
			lost += run.Lost()
		}
	}
	return lost
}

// write returns the final report.
func (r Result) write(style stage.Style) []string {
	lines := slices.Concat([]string{""}, r.requests().Lines(style), []string{""}, r.times().Lines(style))
	for _, note := range r.notes() {
		lines = append(lines, "", note)
	}
	return append(lines, "", r.verdict(style))
}

// lostCell paints a number of lost requests.
func lostCell(lost, charged int) stage.Cell {
	cell := stage.Cell{Text: stage.Thousands(lost), Paint: stage.Green}
	switch {
	case charged > 0:
		cell.Paint = stage.Red
	case lost > 0:
		cell.Paint = stage.Yellow
	}
	return cell
}

// requests returns the table of requests by workload.
func (r Result) requests() stage.Table {
	table := stage.Table{Columns: []stage.Column{
		{Title: "WORKLOAD"}, {Title: "REQUESTS", Right: true}, {Title: "LOST", Right: true},
		{Title: "P50", Right: true}, {Title: "P99", Right: true}, {Title: "SLOW P50", Right: true},
		{Title: "SLOW P99", Right: true}, {Title: "DRAINED", Right: true},
	}}
	for _, run := range r.Runs {
		last := ""
		for _, o := range run.Outcomes {
			group := o.group(run.Hooks)
			if group != last {
				table.Rows = append(table.Rows, []stage.Cell{{Text: group, Paint: stage.Bold}})
				last = group
			}
			total := o.Report.Total()
			row := stage.Cells("  "+o.Name, stage.Thousands(total.Sent), "",
				milliseconds(total.Fast.Percentile(50)), milliseconds(total.Fast.Percentile(99)),
				milliseconds(total.Slow.Percentile(50)), milliseconds(total.Slow.Percentile(99)), stage.Thousands(total.Drained))
			row[2] = lostCell(total.Lost, o.Charged())
			table.Rows = append(table.Rows, row)
		}
	}
	return table
}

// group returns the heading of the workloads that are protected alike.
func (o Outcome) group(hooks bool) string {
	switch {
	case o.JoinsOnly:
		return "CloneSet, preNormal hook alone"
	case o.Deployment && hooks:
		return "Deployment, guard on"
	case o.Deployment:
		return "Deployment, guard off"
	case hooks:
		return "CloneSet, hooks on"
	}
	return "CloneSet, hooks off"
}

func milliseconds(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	}
	return fmt.Sprintf("%.2fs", d.Seconds())
}

// times returns the table of the phases.
func (r Result) times() stage.Table {
	table := stage.Table{Columns: []stage.Column{{Title: "PHASE"}}}
	for _, run := range r.Runs {
		table.Columns = append(table.Columns, stage.Column{Title: map[bool]string{true: "ON", false: "OFF"}[run.Hooks], Right: true}, stage.Column{Title: "LOST", Right: true})
	}
	for _, name := range phases() {
		if !slices.ContainsFunc(r.Runs, func(run *RunResult) bool { return run.Took[name] > 0 }) {
			continue
		}
		row := stage.Cells(string(name))
		for _, run := range r.Runs {
			row = append(row, stage.Cell{Text: seconds(run.Took[name])}, lostCell(run.lostIn(name), run.lostIn(name)))
		}
		table.Rows = append(table.Rows, row)
	}
	return table
}

// notes explain the numbers.
func (r Result) notes() []string {
	notes := []string{}
	for _, run := range r.Runs {
		for _, o := range run.Outcomes {
			if o.JoinsOnly {
				notes = append(notes, fmt.Sprintf(
					"%s is the proposal's YAML unchanged: its preNormal hook covers how Pods join, where %s requests were lost, and nothing\n"+
						"covers how they leave, where %s were. %s-drain has a preDelete hook for that.",
					o.Name, stage.Thousands(o.Charged()), stage.Thousands(o.Leaving), o.Name))
			}
		}
		if reasons := run.hooked().Reasons; len(reasons) > 0 {
			notes = append(notes, fmt.Sprintf("Lost with %s: %s.", title(run.Hooks), stage.Counts(reasons)))
		}
	}
	return notes
}

// verdict returns the last line.
func (r Result) verdict(style stage.Style) string {
	parts := []string{}
	for _, run := range r.Runs {
		text := fmt.Sprintf("%s: %s requests, %s lost", title(run.Hooks), stage.Thousands(run.hooked().Total().Sent), stage.Thousands(run.Lost()))
		if run.Hooks && run.DrainedSlow() > 0 {
			text += fmt.Sprintf(", %s slow ones drained", stage.Thousands(run.DrainedSlow()))
		}
		parts = append(parts, style.Paint(lostCell(run.Lost(), run.Lost()).Paint, text))
	}
	return strings.Join(parts, "   ")
}

// markLength is how long a mark of lost requests lasts, in milliseconds.
const markLength = 100

// record records the present state, and the requests that were lost since the last time.
func (b *board) record() {
	if b.ended {
		return
	}
	marks := map[string]map[string][]page.Mark{} // by workload and Pod
	for _, l := range b.losses[b.recorded:] {
		pod, lane := b.at(l.Addr, l.At)
		if lane == nil {
			pod = "" // The caller knew none.
		}
		if marks[l.of.Name] == nil {
			marks[l.of.Name] = map[string][]page.Mark{}
		}
		at, of := b.recorder.Since(l.At), marks[l.of.Name]
		if last := len(of[pod]) - 1; last >= 0 && at < of[pod][last].At+markLength {
			of[pod][last].Count++
			continue
		}
		of[pod] = append(of[pod], page.Mark{At: at, Kind: page.MarkLost, Count: 1, Text: l.Reason})
	}
	b.recorded = len(b.losses)
	b.server.Observe(b.now(), "", list.Map(slices.Sorted(maps.Keys(b.workloads)), func(name string) page.Seen {
		return page.Seen{Workload: *b.workloads[name], Marks: marks[name]}
	}), b.marks...)
	b.marks = nil
}

// recordings returns the recordings of a run: one of the workloads with every hook or with none, and
// one of those with the preNormal hook only.
func (r *run) recordings() (all []page.Run) {
	var whole page.Run
	r.board.Change(func() {
		r.board.record()
		whole, r.board.ended = r.board.recorder.Recording().Runs[0], true
	})
	for _, joinsOnly := range []bool{false, true} {
		part := whole
		part.Title, part.Sets = "H"+title(r.hooks)[1:], nil
		if joinsOnly {
			part.Title = "preNormal hook alone"
		}
		for _, a := range r.actors {
			at := slices.IndexFunc(whole.Sets, func(s page.Set) bool { return s.ID == a.set.GetKind()+"/"+namespace+"/"+a.Name })
			if at < 0 || a.JoinsOnly != joinsOnly {
				continue
			}
			set, sent := whole.Sets[at], stage.Thousands(a.client.Report().Total().Sent)
			part.Sets = append(part.Sets, page.Set{
				ID: set.ID, Title: a.set.GetKind() + " " + a.Name, Text: a.About + " · " + sent + " requests",
				Registries: set.Registries, Marks: set.Marks, Lanes: set.Lanes,
			})
		}
		if len(part.Sets) > 0 {
			all = append(all, part)
		}
	}
	return all
}

// write writes a recording to a file as one page.
func write(path string, recording *page.Recording) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the page: %w; choose another file with -page", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return page.WriteFile(file, recording)
}
