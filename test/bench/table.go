// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/demo/view"
)

// grid is a table before it is drawn.
type grid struct {
	title   string
	columns []view.Column
	rows    [][]string
}

// text makes left-aligned columns, number right-aligned ones.
func text(title string) view.Column   { return view.Column{Title: title} }
func number(title string) view.Column { return view.Column{Title: title, Right: true} }

// grids are the tables of a report.
func (r *Report) grids() []grid {
	return []grid{r.ceilings(), r.phases(), r.writes(), r.cpu()}
}

func (r *Report) ceilings() grid {
	g := grid{
		title:   fmt.Sprintf("The API server alone: a plain client with %d workers, no controller", rawWorkers),
		columns: []view.Column{number("Pods"), text("request"), number("wall"), number("per second"), number("p50"), number("p99"), number("nodes done")},
	}
	for _, size := range r.Sizes {
		for _, c := range size.Ceilings {
			p50, p99 := percentiles(c.Latency)
			g.rows = append(g.rows, []string{
				group(size.Pods), c.Name, seconds(c.Seconds), decimal(c.PerSecond, 0), p50, p99, seconds(c.SettledSeconds),
			})
		}
	}
	return g
}

func (r *Report) phases() grid {
	g := grid{
		title: "Usher",
		columns: []view.Column{
			number("Pods"), text("phase"), number("wall"), number("Pods/s"), number("writes/Pod"), number("rejected"),
			number("not ready p50"), number("p99"), number("least ready"), number("CPU"), number("peak MiB"),
		},
	}
	for _, size := range r.Sizes {
		for _, p := range size.Phases {
			p50, p99 := percentiles(p.notReady())
			least := "-"
			if p.Kind.updates() {
				least = group(p.LeastReady)
			}
			g.rows = append(g.rows, []string{
				group(size.Pods), p.Name, seconds(p.Seconds), decimal(p.PodsPerSecond, 1), decimal(p.WritesPerPod, 2),
				decimal(100*p.Usher.RejectedShare(), 2) + " %", p50, p99, least, seconds(p.CPU.Usher), decimal(p.PeakMiB, 0),
			})
		}
	}
	return g
}

// notReady is how long a Pod was not ready: a new one until it was ready, one updated
// in place until it was ready again.
func (p *Phase) notReady() *Distribution {
	if p.Kind == KindInPlace {
		return p.OutOfService
	}
	return p.Startup
}

// shownWrites are the writes with a column of their own.
func shownWrites() []string {
	return []string{"create pods", "patch pods", "patch pods/status", "delete pods", "patch clonesets/status"}
}

func (r *Report) writes() grid {
	g := grid{title: "Requests per Pod", columns: []view.Column{number("Pods"), text("phase")}}
	for _, what := range shownWrites() {
		g.columns = append(g.columns, number(what))
	}
	g.columns = append(g.columns, number("other"), number("all of Usher's"), number("reads"), number("writes of others"), text("rejected"))
	for _, size := range r.Sizes {
		for _, p := range size.Phases {
			row, rest := []string{group(size.Pods), p.Name}, p.Usher.Total()
			for _, what := range shownWrites() {
				row = append(row, perPod(p.Usher.Writes[what], size.moved()))
				rest -= p.Usher.Writes[what]
			}
			g.rows = append(g.rows, append(row,
				perPod(rest, size.moved()), decimal(p.WritesPerPod, 2), perPod(p.Usher.Reads, size.moved()),
				perPod(p.OtherWrites, size.moved()), list(p.Usher.Rejected)))
		}
	}
	return g
}

func (r *Report) cpu() grid {
	g := grid{
		title: "CPU seconds",
		columns: []view.Column{
			number("Pods"), text("phase"), number("wall"), number("Usher"), number("API server"), number("etcd"),
			number("scheduler, controllers"), number("nodes, harness"), number("elsewhere"),
		},
	}
	row := func(pods int, name string, wall float64, cpu CPU) {
		g.rows = append(g.rows, []string{
			group(pods), name, seconds(wall), decimal(cpu.Usher, 1), decimal(cpu.APIServer, 1), decimal(cpu.Etcd, 1),
			decimal(cpu.Others, 1), decimal(cpu.Harness, 1), decimal(cpu.Elsewhere, 1),
		})
	}
	for _, size := range r.Sizes {
		for _, c := range size.Ceilings {
			row(size.Pods, "raw "+c.Name, c.Seconds, c.CPU)
		}
		for _, p := range size.Phases {
			row(size.Pods, p.Name, p.StatusSeconds, p.CPU)
		}
	}
	return g
}

// lines draws the whole report for a terminal.
func (r *Report) lines(style view.Style) []string {
	return draw(style, r.grids(), r.Machine, r.Verdicts)
}

func draw(style view.Style, grids []grid, machine Machine, verdicts []Verdict) []string {
	lines := []string{}
	for _, g := range grids {
		lines = append(lines, "", style.Paint(view.Bold, g.title))
		lines = append(lines, view.Table(g.columns, cells(g.rows), style)...)
	}
	lines = append(lines, "", machine.line(), "")
	for _, v := range verdicts {
		lines = append(lines, v.line(style))
	}
	return lines
}

// cells converts rows of text into cells, with an empty line between sizes.
func cells(rows [][]string) [][]view.Cell {
	out := [][]view.Cell{}
	for i, row := range rows {
		if i > 0 && row[0] != rows[i-1][0] {
			out = append(out, nil)
		}
		painted := []view.Cell{}
		for _, value := range row {
			painted = append(painted, view.Cell{Text: value})
		}
		out = append(out, painted)
	}
	return out
}

func (m Machine) line() string {
	return fmt.Sprintf("%d processors for everything, Kubernetes %s, %d simulated nodes, %s.", m.CPUs, m.Kubernetes, m.Nodes, m.Go)
}

func (v Verdict) line(style view.Style) string {
	word := style.Paint(view.Green, "ok    ")
	if !v.OK {
		word = style.Paint(view.Red, "missed")
	}
	return word + "  " + v.What + "\n        " + v.Found
}

// Markdown writes the report as tables for a document.
func (r *Report) Markdown() string { return document(r.Taken, r.grids(), r.Machine, r.Verdicts) }

func document(taken time.Time, grids []grid, machine Machine, verdicts []Verdict) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s. %s\n", taken.UTC().Format("2006-01-02"), machine.line())
	for _, g := range grids {
		fmt.Fprintf(&b, "\n**%s**\n\n", g.title)
		titles, rules := []string{}, []string{}
		for _, column := range g.columns {
			titles = append(titles, column.Title)
			rule := "---"
			if column.Right {
				rule = "---:"
			}
			rules = append(rules, rule)
		}
		for _, row := range append([][]string{titles, rules}, g.rows...) {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
	}
	if len(verdicts) == 0 {
		return b.String()
	}
	b.WriteString("\n| | asked for | found |\n|---|---|---|\n")
	for _, v := range verdicts {
		word := "ok"
		if !v.OK {
			word = "**missed**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", word, v.What, v.Found)
	}
	return b.String()
}

// percentiles are the p50 and p99 of a distribution; dashes if there is none.
func percentiles(d *Distribution) (p50, p99 string) {
	if d == nil {
		return "-", "-"
	}
	return milliseconds(d.P50), milliseconds(d.P99)
}

func seconds(s float64) string {
	if s < 10 {
		return decimal(s, 2) + " s"
	}
	return decimal(s, 1) + " s"
}

func milliseconds(s float64) string {
	if s < 0.01 {
		return decimal(1000*s, 1) + " ms"
	}
	return decimal(1000*s, 0) + " ms"
}

func decimal(value float64, digits int) string { return strconv.FormatFloat(value, 'f', digits, 64) }

func perPod(count, pods int) string {
	if count == 0 {
		return "-"
	}
	return decimal(float64(count)/float64(pods), 2)
}

// list formats counts, the most frequent first.
func list(counts map[string]int) string {
	parts := []string{}
	for _, name := range byCount(counts) {
		parts = append(parts, fmt.Sprintf("%s × %s", group(counts[name]), name))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// group formats a number with thousands separators.
func group(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
