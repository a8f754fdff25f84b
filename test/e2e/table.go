// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/stage"
)

// line is the outcome on the display.
func (o Outcome) line() string {
	lost := "none lost"
	if o.Lost > 0 {
		lost = fmt.Sprintf("%d lost", o.Lost)
	}
	return fmt.Sprintf("%s requests, %s, p99 %s", thousands(o.Requests), lost, milliseconds(o.P99))
}

// table is the final table of the run.
func table(outcomes []Outcome, style stage.Style) []string {
	columns := []stage.Column{
		{Title: "story"}, {Title: "registry", Expendable: 1}, {Title: "requests", Right: true}, {Title: "lost", Right: true},
		{Title: "p99", Right: true}, {Title: "time", Right: true}, {Title: "what happens", Expendable: 2},
	}
	var rows [][]stage.Cell
	var notes []string
	for _, o := range outcomes {
		name, lost := stage.Cell{Text: "✓ " + o.Name, Paint: stage.Green}, stage.Cell{Text: thousands(o.Lost)}
		if o.Failure != "" {
			name = stage.Cell{Text: "✗ " + o.Name, Paint: stage.Red}
			notes = append(notes, "", style.Paint(stage.Red, "✗ "+o.Name), indent(o.Failure+o.reasons()))
		}
		if o.Lost > 0 {
			lost.Paint = stage.Yellow
		}
		rows = append(rows, []stage.Cell{
			name, {Text: string(o.Registry)}, {Text: thousands(o.Requests)}, lost,
			{Text: milliseconds(o.P99)}, {Text: seconds(o.Took)}, {Text: o.About, Paint: stage.Faint},
		})
	}
	return append(stage.Table{Columns: columns, Rows: rows}.Lines(style), notes...)
}

// footprintTable is what the run reports on Usher itself.
func footprintTable(f Footprint, style stage.Style) []string {
	columns := []stage.Column{{Title: "usher"}, {Title: "found", Right: true}, {Title: "how", Expendable: 1}}
	var rows [][]stage.Cell
	for _, m := range f.lines() {
		rows = append(rows, []stage.Cell{{Text: m.what}, {Text: m.found}, {Text: m.from, Paint: stage.Faint}})
	}
	return stage.Table{Columns: columns, Rows: rows}.Lines(style)
}

func (o Outcome) reasons() string {
	text := ""
	for _, r := range o.Reasons {
		text += fmt.Sprintf("\nlost: %d × %s", r.Count, r.Reason)
	}
	for _, l := range o.Losses {
		text += fmt.Sprintf("\n  due %s, lost %s: %s at %q", l.Due.Format(time.StampMilli), l.At.Format(time.StampMilli), l.Reason, l.Addr)
	}
	return text
}

func indent(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }

// failed counts the stories that failed.
func failed(outcomes []Outcome) int {
	n := 0
	for _, o := range outcomes {
		if o.Failure != "" {
			n++
		}
	}
	return n
}

// The marks between which the report is written.
const (
	reportBegin = "<!-- e2e: written by make e2e ARGS=-report -->"
	reportEnd   = "<!-- e2e: end -->"
)

// reportFile is the report below the checkout.
const reportFile = "docs/reliability.md"

// writeReport writes a text between the marks of a document.
func writeReport(root, file, begin, end, report string) error {
	path := filepath.Join(root, file)
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	next, err := splice(string(text), begin, end, report)
	if err != nil {
		return fmt.Errorf("write the report %s: %w", path, err)
	}
	return os.WriteFile(path, []byte(next), 0o644)
}

func splice(text, begin, end, report string) (string, error) {
	before, rest, ok := strings.Cut(text, begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", errors.New("the marks are gone: put " + begin + " and " + end + " where the table belongs")
	}
	return before + begin + "\n" + report + end + after, nil
}

func markdown(outcomes []Outcome, now time.Time, took load) string {
	text := fmt.Sprintf("Played on %s. %s\n\n| Story | What happens | Registry | Requests | Lost | p99 | Time |\n|---|---|---|---:|---:|---:|---:|\n",
		now.UTC().Format(time.DateOnly), took)
	for _, o := range outcomes {
		text += fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", o.Name, o.About, o.Registry,
			thousands(o.Requests), thousands(o.Lost), milliseconds(o.P99), seconds(o.Took))
	}
	return text
}

func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
