// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// outcome is the result of a story.
type outcome struct {
	Story
	total   traffic.Section
	losses  []traffic.Loss
	reasons map[string]int
	// took is the time from the first object to the end.
	took time.Duration
	// notes are measurements of the story itself.
	notes []string
	// failure says why the story failed; empty if it did not.
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

// together returns one outcome for each story, however often it was played.
func together(outcomes []outcome) (all []outcome) {
	for _, o := range outcomes {
		last := len(all) - 1
		if last < 0 || all[last].base != o.base {
			all = append(all, o)
			continue
		}
		all[last] = all[last].and(o)
	}
	return all
}

// and combines the outcomes of two rounds of a story. It keeps the first failure.
func (o outcome) and(next outcome) outcome {
	sum := o.report().Add(next.report())
	o.total, o.losses, o.reasons = sum.Total(), sum.Losses, sum.Reasons
	o.took += next.took
	o.notes = append(o.notes, next.notes...)
	if o.failure == "" && next.failure != "" {
		o.failure = fmt.Sprintf("round %d: %s", next.round+1, next.failure)
	}
	return o
}

// report returns the part of its callers' report that the outcome keeps.
func (o outcome) report() traffic.Report {
	return traffic.Report{Sections: []traffic.Section{o.total}, Losses: o.losses, Reasons: o.reasons}
}

// line returns the outcome as a line of the display.
func (o outcome) line() string {
	if o.failure != "" {
		line, _, _ := strings.Cut(o.failure, "\n")
		return "FAILED: " + line
	}
	return strings.Join(append([]string{fmt.Sprintf("%s requests, %s lost, p99 %s",
		stage.Thousands(o.total.Sent), stage.Thousands(o.total.Lost), o.p99())}, o.notes...), "; ")
}

func (o outcome) p99() string { return stage.Milliseconds(o.total.Fast.Percentile(percentile)) }

// storyTable returns the table of the stories.
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

// failures returns all details of the stories that failed.
func failures(outcomes []outcome, style stage.Style) (lines []string) {
	for _, o := range outcomes {
		if o.failure == "" {
			continue
		}
		text := o.failure
		for _, reason := range slices.Sorted(maps.Keys(o.reasons)) {
			text += fmt.Sprintf("\nlost: %d × %s", o.reasons[reason], reason)
		}
		for _, l := range o.losses {
			text += fmt.Sprintf("\n  due %s, lost %s: %s at %q", l.Due.Format(time.StampMilli), l.At.Format(time.StampMilli), l.Reason, l.Addr)
		}
		lines = append(lines, "", style.Paint(stage.Red, "✗ "+o.Name), "  "+strings.ReplaceAll(text, "\n", "\n  "))
	}
	return lines
}

// reports has the tables for documents, which the program outside writes.
type reports struct{ Stories, Footprint string }

const (
	reportsFile = "reports.json"
	// The documents that have a table, and the marks around it.
	storiesFile    = "docs/measurements/stories.md"
	storiesBegin   = "<!-- e2e: written by make e2e ARGS=-report -->"
	storiesEnd     = "<!-- e2e: end -->"
	footprintFile  = "docs/measurements/footprint.md"
	footprintBegin = "<!-- e2e: footprint, written by make e2e ARGS=-report -->"
	footprintEnd   = "<!-- e2e: end of the footprint -->"
)

func writeReports(dir, load string) error {
	var r reports
	if err := stage.Load(&r, dir, reportsFile); err != nil {
		return err
	}
	today := time.Now().UTC().Format(time.DateOnly)
	return errors.Join(
		stage.Splice(storiesFile, storiesBegin, storiesEnd, fmt.Sprintf("Played on %s. %s\n\n%s", today, load, r.Stories)),
		stage.Splice(footprintFile, footprintBegin, footprintEnd, fmt.Sprintf("Measured on %s.\n\n%s", today, r.Footprint)))
}
