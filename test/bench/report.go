// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// Report is the result of a measurement.
type Report struct {
	taken   time.Time
	machine string
	results []*result
	goals   []goal
}

// Missed reports whether a goal is not met, or a number is out of its range.
func (r *Report) Missed() bool {
	return slices.ContainsFunc(r.goals, func(g goal) bool { return !g.met })
}

// OutOfRange reports whether a number is out of its range. It is an error if there are no ranges for what was
// measured.
func (r *Report) OutOfRange() (bool, error) {
	ranged := list.Only(r.goals, func(g goal) bool { return g.ranged })
	if len(ranged) == 0 {
		return false, errors.New("there are no ranges for what was measured: test/bench/ranges.yaml has them for 2,000 Pods")
	}
	return slices.ContainsFunc(ranged, func(g goal) bool { return !g.met }), nil
}

// column is one column of a table: a number, unless left is set.
type column struct {
	title string
	left  bool
	cell  func(*result) string
}

// grid is a table of the results of a plain client, or of Usher.
type grid struct {
	title   string
	alone   bool
	columns []column
	// ways means that the table is about the Deployment.
	ways bool
}

// has reports whether a result belongs to the grid.
func (g grid) has(r *result) bool { return r.alone == g.alone && (r.way != "") == g.ways }

// grids returns the tables of a report. Some columns are only for measurements with a registry, and
// some only for those without one.
func grids(withRegistry bool) []grid {
	pods := column{"Pods", false, func(r *result) string { return stage.Thousands(r.size) }}
	first, server, usherTitle, etcdTitle := []column{pods}, "The API server", "Usher", "etcd"
	if withRegistry {
		first = []column{{"registry", true, func(r *result) string { return r.server }}, pods}
		server, usherTitle, etcdTitle = "The registry", "Usher, both halves", "its etcd"
	}
	nodes := []column{{"nodes done", false, func(r *result) string { return stage.Seconds(r.perRound(r.done)) }}}
	if withRegistry {
		nodes = nil
	}
	step := append(slices.Clone(first), column{"phase", true, func(r *result) string { return r.name }})
	wall := column{"wall", false, func(r *result) string { return stage.Seconds(r.perRound(r.wall)) }}
	all := []grid{
		{title: fmt.Sprintf("%s alone: a plain client with %d workers, no controller", server, plainWorkers), alone: true, columns: slices.Concat(first, []column{
			{"request", true, func(r *result) string { return r.name }}, wall,
			{"per second", false, func(r *result) string { return decimal(r.perSecond(), 0) }},
			{"p50", false, func(r *result) string { return percentile(r.latency, 50) }},
			{"p99", false, func(r *result) string { return percentile(r.latency, 99) }},
		}, nodes)},
		{title: usherTitle, columns: slices.Concat(step, []column{wall}, outcome(withRegistry))},
		{title: "Requests to the API server per Pod", columns: slices.Concat(step, writes(withRegistry))},
		{title: "CPU seconds", columns: slices.Concat(step, cpuSeconds(withRegistry, etcdTitle))},
		{title: "CPU seconds, " + strings.ToLower(server) + " alone", alone: true, columns: slices.Concat(step, cpuSeconds(withRegistry, etcdTitle))},
	}
	all = append(all, grid{
		title: fmt.Sprintf("A Deployment of %d Pods, whose callers get %s to notice", deploymentPods, noticeTime),
		alone: true, ways: true, columns: deploymentColumns(),
	})
	if withRegistry {
		all = append(all, grid{title: "Calls of the registry", columns: append(step,
			column{"all", false, func(r *result) string { return stage.Thousands(sum(r.calls)) }},
			column{"by kind", true, func(r *result) string { return stage.Counts(r.calls) }})})
	}
	return all
}

// outcome returns what Usher achieved, and at what cost.
func outcome(withRegistry bool) []column {
	rate := column{"Pods/s", false, func(r *result) string {
		if r.name == stepIdle {
			return "-"
		}
		return decimal(r.perSecond(), 1)
	}}
	written := column{"writes/Pod", false, func(r *result) string { return decimal(r.perPod(float64(sum(r.own.writes))), 2) }}
	rejected := column{"rejected", false, func(r *result) string { return decimal(100*r.own.rejectedShare(), 2) + " %" }}
	peak := column{"peak MiB", false, func(r *result) string { return decimal(r.peak, 0) }}
	if withRegistry {
		return []column{
			{"changed", false, func(r *result) string {
				if r.name == stepIdle {
					return "0"
				}
				return stage.Thousands(r.pods)
			}}, rate,
			{"calls/Pod", false, func(r *result) string { return decimal(r.perPod(float64(sum(r.calls))), 2) }}, written, rejected,
			{"entries came", false, func(r *result) string { return stage.Thousands(r.joined) }},
			{"left", false, func(r *result) string { return stage.Thousands(r.left) }},
			{"wrongly", false, func(r *result) string { return stage.Thousands(len(r.wrong)) }},
			{"deletion to entry gone, p99", false, func(r *result) string { return percentile(r.gone, 99) }},
			{"Usher's CPU/Pod", false, func(r *result) string { return stage.Milliseconds(r.cpuPerPod()) }}, peak,
		}
	}
	return []column{
		rate, written, rejected,
		{"not ready p50", false, func(r *result) string { return percentile(r.unready(), 50) }},
		{"p99", false, func(r *result) string { return percentile(r.unready(), 99) }},
		{"least ready", false, func(r *result) string {
			if !r.bounded {
				return "-"
			}
			return stage.Thousands(r.least)
		}},
		{"CPU", false, func(r *result) string { return stage.Seconds(r.perRound(r.cpu[usher])) }}, peak,
	}
}

// writes returns Usher's requests to the API server by kind.
func writes(withRegistry bool) []column {
	kinds := []string{"create pods", "patch pods", "patch pods/status", "delete pods", "patch clonesets/status"}
	if withRegistry {
		kinds = append(kinds, "patch registrations/status")
	}
	count := func(title string, of func(*result) int) column {
		return column{title, false, func(r *result) string {
			if of(r) == 0 {
				return "-"
			}
			return decimal(r.perPod(float64(of(r))), 2)
		}}
	}
	columns := list.Map(kinds, func(kind string) column { return count(kind, func(r *result) int { return r.own.writes[kind] }) })
	return append(columns,
		count("other", func(r *result) int {
			rest := sum(r.own.writes)
			for _, kind := range kinds {
				rest -= r.own.writes[kind]
			}
			return rest
		}),
		count("all of Usher's", func(r *result) int { return sum(r.own.writes) }),
		count("reads", func(r *result) int { return r.own.reads }),
		count("writes of others", func(r *result) int { return r.theirs }),
		column{"rejected", true, func(r *result) string { return stage.Counts(r.own.rejected) }})
}

func cpuSeconds(withRegistry bool, etcdTitle string) []column {
	columns := []column{{"until", false, func(r *result) string {
		if r.alone {
			return stage.Seconds(r.perRound(r.wall))
		}
		return stage.Seconds(r.perRound(r.done))
	}}}
	for role, title := range []string{"Usher", "registry", "API server", etcdTitle, "scheduler, controllers", "nodes, harness", "other programs"} {
		if role != int(registry) || withRegistry {
			columns = append(columns, column{title, false, func(r *result) string { return decimal(r.perRound(r.cpu[role]).Seconds(), 1) }})
		}
	}
	return columns
}

// cpuPerPod returns the CPU time that a Pod costs Usher.
func (r *result) cpuPerPod() time.Duration { return r.cpu[usher] / time.Duration(r.pods) }

// table fills in a grid.
func (r *Report) table(g grid) stage.Table {
	t := stage.Table{Columns: list.Map(g.columns, func(c column) stage.Column { return stage.Column{Title: c.title, Right: !c.left} })}
	for i, one := range r.results {
		if !g.has(one) {
			continue
		}
		if i > 0 && len(t.Rows) > 0 && r.results[i-1].size != one.size {
			t.Rows = append(t.Rows, nil)
		}
		t.Rows = append(t.Rows, stage.Cells(list.Map(g.columns, func(c column) string { return c.cell(one) })...))
	}
	return t
}

// grids returns the tables that have a row.
func (r *Report) grids() []grid {
	if len(r.results) == 0 {
		return nil
	}
	return slices.DeleteFunc(grids(r.results[0].server != ""), func(g grid) bool {
		return !slices.ContainsFunc(r.results, g.has)
	})
}

// lines shows the report on a terminal.
func (r *Report) lines(style stage.Style) []string {
	lines := []string{}
	for _, g := range r.grids() {
		lines = append(lines, "", style.Paint(stage.Bold, g.title))
		lines = append(lines, r.table(g).Lines(style)...)
	}
	lines = append(lines, "", r.machine, "")
	for _, g := range r.goals {
		word := style.Paint(stage.Green, "ok    ")
		if !g.met {
			word = style.Paint(stage.Red, "missed")
		}
		lines = append(lines, word+"  "+g.what+"\n        "+g.found)
	}
	return lines
}

// Markdown writes the report as tables for a document.
func (r *Report) Markdown() string {
	text := fmt.Sprintf("Measured on %s. %s\n", r.taken.UTC().Format(time.DateOnly), r.machine)
	for _, g := range r.grids() {
		text += fmt.Sprintf("\n**%s**\n\n%s", g.title, r.table(g).Markdown())
	}
	goals := stage.Table{Columns: []stage.Column{{}, {Title: "asked for"}, {Title: "found"}}}
	for _, g := range r.goals {
		word := "ok"
		if !g.met {
			word = "**missed**"
		}
		goals.Rows = append(goals.Rows, stage.Cells(word, g.what, g.found))
	}
	return text + "\n" + goals.Markdown()
}

func percentile(latencies traffic.Latencies, percent float64) string {
	if len(latencies) == 0 {
		return "-"
	}
	return stage.Milliseconds(latencies.Percentile(percent))
}

func decimal(value float64, digits int) string { return strconv.FormatFloat(value, 'f', digits, 64) }
