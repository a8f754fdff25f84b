// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/usher-dev/usher/test/checkout"
	"github.com/usher-dev/usher/test/cluster/process"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// outcome is the result of a story.
type outcome struct {
	Story
	total   traffic.Section
	losses  []traffic.Loss
	reasons []traffic.ReasonCount
	// took is the time from the first object to the end.
	took time.Duration
	// notes are what the story itself measured.
	notes []string
	// failure is why the story failed; empty if it did not.
	failure string
}

const (
	// shownLosses is how many lost requests are listed individually.
	shownLosses = 5
	// percentile of the latencies of the requests without a requested delay is shown.
	percentile = 99
)

func outcomeOf(story Story, report traffic.Report, took time.Duration, failure error) outcome {
	o := outcome{
		Story: story, total: report.Total(), took: took,
		losses: report.Losses[:min(len(report.Losses), shownLosses)], reasons: report.Reasons,
	}
	switch {
	case failure != nil:
		o.failure = failure.Error()
	case o.total.Lost > 0 && !story.MayLose:
		o.failure = fmt.Sprintf("%d requests were lost, want none", o.total.Lost)
	}
	return o
}

// line is the outcome on the display.
func (o outcome) line() string {
	if o.failure != "" {
		line, _, _ := strings.Cut(o.failure, "\n")
		return "FAILED: " + line
	}
	return strings.Join(append([]string{fmt.Sprintf("%s requests, %s lost, p99 %s",
		stage.Thousands(o.total.Sent), stage.Thousands(o.total.Lost), o.p99())}, o.notes...), "; ")
}

func (o outcome) p99() string { return stage.Milliseconds(o.total.Fast.Percentile(percentile)) }

// storyTable is what the run reports on the stories.
func storyTable(outcomes []outcome) stage.Table {
	t := stage.Table{Columns: []stage.Column{
		{Title: "Story"}, {Title: "Registry"}, {Title: "Requests", Right: true}, {Title: "Lost", Right: true},
		{Title: "p99", Right: true}, {Title: "Time", Right: true}, {Title: "What happens"},
	}}
	for _, o := range outcomes {
		row := stage.Cells(o.Name, o.registries(), stage.Thousands(o.total.Sent), stage.Thousands(o.total.Lost), o.p99(), stage.Seconds(o.took), o.About)
		row[0].Paint, row[6].Paint = stage.Green, stage.Faint
		if o.failure != "" {
			row[0] = stage.Cell{Text: "✗ " + o.Name, Paint: stage.Red}
		}
		if o.total.Lost > 0 {
			row[3].Paint = stage.Yellow
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// failures are all details of the stories that failed.
func failures(outcomes []outcome, style stage.Style) (lines []string) {
	for _, o := range outcomes {
		if o.failure == "" {
			continue
		}
		text := o.failure
		for _, r := range o.reasons {
			text += fmt.Sprintf("\nlost: %d × %s", r.Count, r.Reason)
		}
		for _, l := range o.losses {
			text += fmt.Sprintf("\n  due %s, lost %s: %s at %q", l.Due.Format(time.StampMilli), l.At.Format(time.StampMilli), l.Reason, l.Addr)
		}
		lines = append(lines, "", style.Paint(stage.Red, "✗ "+o.Name), "  "+strings.ReplaceAll(text, "\n", "\n  "))
	}
	return lines
}

// reports are the tables for documents, which the program outside writes.
type reports struct{ Stories, Footprint string }

const (
	reportsFile = "reports.json"
	// The documents that have a table, and the marks around it.
	storiesFile    = "docs/reliability.md"
	storiesBegin   = "<!-- e2e: written by make e2e ARGS=-report -->"
	storiesEnd     = "<!-- e2e: end -->"
	footprintFile  = "docs/performance.md"
	footprintBegin = "<!-- e2e: footprint, written by make e2e ARGS=-report -->"
	footprintEnd   = "<!-- e2e: end of the footprint -->"
)

func writeReports(dir, load string) error {
	var r reports
	if err := stage.Load(&r, dir, reportsFile); err != nil {
		return err
	}
	root, err := checkout.Find()
	if err != nil {
		return err
	}
	today := time.Now().UTC().Format(time.DateOnly)
	return errors.Join(
		splice(filepath.Join(root, storiesFile), storiesBegin, storiesEnd, fmt.Sprintf("Played on %s. %s\n\n%s", today, load, r.Stories)),
		splice(filepath.Join(root, footprintFile), footprintBegin, footprintEnd, fmt.Sprintf("Measured on %s.\n\n%s", today, r.Footprint)))
}

// splice writes a text between the marks of a document.
func splice(path, begin, end, report string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("write the report %s: put %s and %s where the table belongs", path, begin, end)
	}
	return os.WriteFile(path, []byte(before+begin+"\n"+report+end+after), 0o644)
}

// load is the CPU time that a run and the machine had used at its start: latencies
// measured on a machine that is busy with other work mean little.
type load struct {
	began         time.Time
	ours, machine time.Duration
}

func newLoad() (load, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &used); err != nil {
		return load{}, fmt.Errorf("read the CPU time of the run: %w", err)
	}
	machine, err := process.Table{}.MachineCPU()
	return load{began: time.Now(), ours: time.Duration(used.Utime.Nano() + used.Stime.Nano()), machine: machine}, err
}

// text tells what was used since, once everything that the run started has ended.
func (l load) text() (string, error) {
	now, err := newLoad()
	took := now.began.Sub(l.began)
	others := (now.machine - l.machine) - (now.ours - l.ours)
	return fmt.Sprintf("It took %s; of the %d processors other programs took %.0f %% meanwhile.", took.Round(time.Second),
		runtime.NumCPU(), max(0, 100*others.Seconds()/took.Seconds()/float64(runtime.NumCPU()))), err
}
