// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/demo/view"
	"github.com/usher-dev/usher/test/servers"
)

// growthLimit is how many times more CPU time a Pod may cost Usher in the largest size
// than in the smallest.
const growthLimit = 1.5

// OperatorReport is the result of a measurement of the hook operator.
type OperatorReport struct {
	// Taken is when it began.
	Taken time.Time `json:"taken"`
	// Machine is the machine it ran on.
	Machine Machine `json:"machine"`
	// Runs are the results by registry and number of Pods.
	Runs []OperatorRun `json:"runs"`
	// Verdicts judge them.
	Verdicts []Verdict `json:"verdicts"`
}

// OperatorRun is the result for one registry and one number of Pods.
type OperatorRun struct {
	// Registry is the server with its version.
	Registry string `json:"registry"`
	// Pods is the number of Pods.
	Pods int `json:"pods"`
	// Alone is what the registry can do for a plain client with many workers.
	Alone []Ceiling `json:"alone"`
	// Phases are what Usher did.
	Phases []OperatorPhase `json:"phases"`
}

// OperatorPhase is one change, until the last Pod and the last entry have reached its
// result.
type OperatorPhase struct {
	// Name is the name of the change.
	Name string `json:"name"`
	// Pods is how many Pods it moves.
	Pods int `json:"pods"`
	// Seconds is how long it took.
	Seconds float64 `json:"seconds"`
	// PodsPerSecond is Pods over Seconds.
	PodsPerSecond float64 `json:"podsPerSecond"`
	// Calls are the requests to the registry by kind, as the registry counts them.
	Calls servers.Calls `json:"calls"`
	// Usher are the requests of Usher, both halves, to the API server.
	Usher *Requests `json:"usher"`
	// OtherWrites is the number of API server writes by everybody else.
	OtherWrites int `json:"otherWrites"`
	// Joined and Left are how many entries became available to callers and stopped
	// being so.
	Joined int `json:"joined"`
	Left   int `json:"left"`
	// Wrong names the Pods whose entries left although they were ready and not
	// draining.
	Wrong []string `json:"wrong,omitempty"`
	// CPU is the CPU time it cost.
	CPU CPU `json:"cpu"`
	// PeakMiB is the peak memory of any Usher since the first phase.
	PeakMiB float64 `json:"peakMiB"`
}

func (r *OperatorReport) grids() []grid {
	return []grid{r.alone(), r.phases(), r.calls(), r.writes(), r.cpu()}
}

// each makes a row for each phase, starting with the registry and the size.
func (r *OperatorReport) each(row func(p *OperatorPhase) []string) [][]string {
	var rows [][]string
	for i := range r.Runs {
		run := &r.Runs[i]
		for j := range run.Phases {
			p := &run.Phases[j]
			rows = append(rows, append([]string{run.Registry, group(run.Pods), p.Name}, row(p)...))
		}
	}
	return rows
}

func phaseColumns(more ...view.Column) []view.Column {
	return append([]view.Column{text("registry"), number("Pods"), text("phase")}, more...)
}

func (r *OperatorReport) alone() grid {
	g := grid{
		title: fmt.Sprintf("The registry alone: a plain client with %d workers, one request an entry", rawWorkers),
		columns: []view.Column{text("registry"), number("entries"), text("request"), number("wall"), number("per second"),
			number("p50"), number("p99")},
	}
	for _, run := range r.Runs {
		for _, c := range run.Alone {
			p50, p99 := percentiles(c.Latency)
			g.rows = append(g.rows, []string{
				run.Registry, group(run.Pods), c.Name, seconds(c.Seconds), decimal(c.PerSecond, 0), p50, p99})
		}
	}
	return g
}

func (r *OperatorReport) phases() grid {
	return grid{
		title: "Usher, both halves",
		columns: phaseColumns(number("moved"), number("wall"), number("Pods/s"), number("calls/Pod"), number("API writes/Pod"),
			number("rejected"), number("entries came"), number("left"), number("wrongly"), number("CPU/Pod"), number("peak MiB")),
		rows: r.each(func(p *OperatorPhase) []string {
			rate, moved := decimal(p.PodsPerSecond, 1), group(p.Pods)
			if p.Name == moveRest {
				rate, moved = "-", "0"
			}
			return []string{
				moved, seconds(p.Seconds), rate, decimal(float64(sum(p.Calls))/float64(p.Pods), 2),
				decimal(float64(p.Usher.Total())/float64(p.Pods), 2), decimal(100*p.Usher.RejectedShare(), 2) + " %",
				group(p.Joined), group(p.Left), group(len(p.Wrong)),
				milliseconds(p.CPU.Usher / float64(p.Pods)), decimal(p.PeakMiB, 0),
			}
		}),
	}
}

func (r *OperatorReport) calls() grid {
	return grid{
		title: "Calls of the registry", columns: phaseColumns(number("all"), text("by kind")),
		rows: r.each(func(p *OperatorPhase) []string { return []string{group(sum(p.Calls)), list(p.Calls)} }),
	}
}

// ownWrites are the writes with a column of their own.
func ownWrites() []string {
	return append(shownWrites(), "patch registrations/status")
}

func (r *OperatorReport) writes() grid {
	g := grid{title: "Writes to the API server per Pod", columns: phaseColumns()}
	for _, what := range ownWrites() {
		g.columns = append(g.columns, number(what))
	}
	g.columns = append(g.columns, number("other"), number("all of Usher's"), number("reads"), number("writes of others"), text("rejected"))
	g.rows = r.each(func(p *OperatorPhase) []string {
		var row []string
		rest := p.Usher.Total()
		for _, what := range ownWrites() {
			row = append(row, perPod(p.Usher.Writes[what], p.Pods))
			rest -= p.Usher.Writes[what]
		}
		return append(row, perPod(rest, p.Pods), perPod(p.Usher.Total(), p.Pods), perPod(p.Usher.Reads, p.Pods),
			perPod(p.OtherWrites, p.Pods), list(p.Usher.Rejected))
	})
	return g
}

func (r *OperatorReport) cpu() grid {
	cells := func(c CPU) []string {
		return []string{decimal(c.Usher, 1), decimal(c.Registry, 1), decimal(c.APIServer, 1), decimal(c.Etcd, 1),
			decimal(c.Others, 1), decimal(c.Harness, 1), decimal(c.Elsewhere, 1)}
	}
	return grid{
		title: "CPU seconds",
		columns: phaseColumns(number("wall"), number("Usher"), number("registry"), number("API server"), number("its etcd"),
			number("scheduler, controllers"), number("nodes, harness"), number("elsewhere")),
		rows: r.each(func(p *OperatorPhase) []string { return append([]string{seconds(p.Seconds)}, cells(p.CPU)...) }),
	}
}

// lines draws the whole report for a terminal.
func (r *OperatorReport) lines(style view.Style) []string {
	return draw(style, r.grids(), r.Machine, r.Verdicts)
}

// Markdown writes the report as tables for a document.
func (r *OperatorReport) Markdown() string {
	return document(r.Taken, r.grids(), r.Machine, r.Verdicts)
}

// Missed reports whether a requirement is not met.
func (r *OperatorReport) Missed() bool {
	return slices.ContainsFunc(r.Verdicts, func(v Verdict) bool { return !v.OK })
}

// judgeOperator makes the verdicts.
func judgeOperator(runs []OperatorRun) []Verdict {
	var verdicts []Verdict
	byRegistry := map[string][]*OperatorRun{}
	for i := range runs {
		verdicts = append(verdicts, judgeRun(&runs[i])...)
		byRegistry[runs[i].Registry] = append(byRegistry[runs[i].Registry], &runs[i])
	}
	for _, name := range slices.Sorted(maps.Keys(byRegistry)) {
		verdicts = append(verdicts, judgeGrowth(byRegistry[name])...)
	}
	return verdicts
}

func judgeRun(run *OperatorRun) []Verdict {
	var wrong []string
	left, noticed, written := 0, 0, 0
	for _, p := range run.Phases {
		switch p.Name {
		case moveControl:
			noticed = len(p.Wrong)
			continue
		case moveRest:
			written = p.Calls.Writes() + p.Joined + p.Left
		}
		wrong, left = append(wrong, p.Wrong...), left+p.Left
	}
	where := fmt.Sprintf("%s, %s Pods: ", run.Registry, group(run.Pods))
	found := fmt.Sprintf("%s of %s entries that left", group(len(wrong)), group(left))
	if len(wrong) > 0 {
		found += ": " + strings.Join(wrong[:min(len(wrong), 3)], ", ")
	}
	return []Verdict{
		{OK: len(wrong) == 0, What: where + "no wrong deregistration, also when Usher is killed", Found: found},
		{OK: noticed == 1, What: where + "the watch notices an entry that is taken out by hand", Found: fmt.Sprintf("%d noticed", noticed)},
		{OK: written == 0, What: where + "a restart at rest writes nothing to the registry", Found: fmt.Sprintf("%d writes", written)},
	}
}

// judgeGrowth compares the smallest with the largest size of one registry.
func judgeGrowth(runs []*OperatorRun) []Verdict {
	small := slices.MinFunc(runs, func(a, b *OperatorRun) int { return a.Pods - b.Pods })
	large := slices.MaxFunc(runs, func(a, b *OperatorRun) int { return a.Pods - b.Pods })
	if small.Pods == large.Pods {
		return nil
	}
	var verdicts []Verdict
	for i, after := range large.Phases {
		before := small.Phases[i]
		if after.Pods != large.Pods || after.Name == moveRest || before.CPU.Usher == 0 {
			continue
		}
		was, is := before.CPU.Usher/float64(before.Pods), after.CPU.Usher/float64(after.Pods)
		verdicts = append(verdicts, Verdict{
			OK:   is <= growthLimit*was,
			What: fmt.Sprintf("%s, %s: the CPU time a Pod costs Usher grows by %g × at most", large.Registry, after.Name, growthLimit),
			Found: fmt.Sprintf("%.1f ×: %s with %s Pods, %s with %s", is/was, milliseconds(is), group(large.Pods),
				milliseconds(was), group(small.Pods)),
		})
	}
	return verdicts
}
