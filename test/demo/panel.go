// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// panel is everything that the live panel shows.
type panel struct {
	now, started time.Time
	title        string
	// note is an optional extra line for special circumstances.
	note string
	sets []progressOf
}

// progressOf is the progress of one CloneSet, with its Pods and its requests.
type progressOf struct {
	name                        string
	desired, updated, available int
	pods                        []row
	stats                       traffic.Stats
}

// render draws the panel: at most style.Height lines, each at most style.Width cells
// wide.
func (p panel) render(style stage.Style) []string {
	// A narrow terminal drops the highest number first.
	table := stage.Table{Columns: []stage.Column{
		{Title: "POD"}, {Title: "STATE"}, {Title: "VERSION", Expendable: 1}, {Title: "ADDRESS", Expendable: 3}, {Title: "IN ETCD"},
		{Title: "REQ/S", Right: true, Expendable: 2}, {Title: "RESTARTS", Right: true, Expendable: 4}, {Title: "WAITS FOR"},
	}}
	foot, names := []string{""}, 0
	for _, set := range p.sets {
		names = max(names, len(set.name))
	}
	for _, set := range p.sets {
		for _, pod := range set.pods {
			table.Rows = append(table.Rows, pod.cells(set.stats, p.now))
		}
		foot = append(foot, set.line(names, style))
	}
	if p.note != "" {
		foot = append(foot, style.Paint(stage.Yellow, fit(p.note, style)))
	}
	if limit := max(style.Height-len(foot)-3, 1); style.Height > 0 && len(table.Rows) > limit {
		hidden := fmt.Sprintf("… %d more Pods", len(table.Rows)-limit+1)
		table.Rows = append(table.Rows[:limit-1], []stage.Cell{{Text: hidden, Paint: stage.Faint}})
	}
	return append(append([]string{p.headline(style), ""}, table.Lines(style)...), foot...)
}

func (p panel) headline(style stage.Style) string {
	whole := int(p.now.Sub(p.started).Seconds())
	clock := fmt.Sprintf("%d:%02d", whole/60, whole%60)
	title, padding := p.title, stage.Gap
	if style.Width > 0 {
		title = stage.Cut(title, style.Width-len(clock)-len(stage.Gap))
		padding = strings.Repeat(" ", max(len(stage.Gap), style.Width-utf8.RuneCountInString(title)-len(clock)))
	}
	return style.Paint(stage.Bold, title) + padding + clock
}

// cells are the Pod's cells in the panel.
func (r row) cells(stats traffic.Stats, now time.Time) []stage.Cell {
	state, paint := cmp.Or(r.state, "-"), stage.Yellow
	switch appsv1alpha1.LifecycleState(r.state) {
	case appsv1alpha1.StateNormal:
		if r.ready {
			paint = stage.Green
		}
	case appsv1alpha1.StateUpdating, appsv1alpha1.StateUpdated:
		paint = stage.Cyan
	}
	if r.leaving {
		state, paint = "Terminating", stage.Faint
	}
	registered := stage.Cell{Text: "○ no", Paint: stage.Faint}
	if r.listed {
		registered = stage.Cell{Text: "● yes", Paint: stage.Green}
	}
	rate := stage.Cell{Text: "0", Paint: stage.Faint}
	for _, instance := range stats.Instances {
		if instance.Addr == r.address && instance.PerSecond > 0 {
			rate = stage.Cell{Text: strconv.Itoa(instance.PerSecond)}
		}
	}
	waits := r.waits
	if !r.waitsSince.IsZero() {
		waits += " (" + seconds(now.Sub(r.waitsSince)) + ")"
	}
	return []stage.Cell{
		{Text: r.name}, {Text: state, Paint: paint}, {Text: cmp.Or(r.version, "-")}, {Text: cmp.Or(r.address, "-")},
		registered, rate, {Text: strconv.Itoa(r.restarts)}, {Text: waits, Paint: stage.Yellow},
	}
}

// line is the rollout's progress and the requests of one set.
func (s progressOf) line(nameWidth int, style stage.Style) string {
	progress := fmt.Sprintf("%-*s  %s  %d of %d updated, %d available", nameWidth, s.name, bar(s.available, s.desired), s.updated, s.desired, s.available)
	if s.stats.Sent == 0 {
		return fit(progress+"  ·  no requests yet", style)
	}
	counters := fmt.Sprintf("  ·  %s sent, %d/s, %d in flight, ", stage.Thousands(s.stats.Sent), s.stats.PerSecond, s.stats.InFlight)
	lost, paint := stage.Thousands(s.stats.Lost)+" lost", stage.Green
	if s.stats.Lost > 0 {
		paint = stage.Red
	}
	if style.Width > 0 && utf8.RuneCountInString(progress+counters+lost) > style.Width {
		// People look for the lost requests, so the rest is cut first.
		return stage.Cut(progress, style.Width-len(lost)-len(stage.Gap)) + stage.Gap + style.Paint(paint, lost)
	}
	return progress + counters + style.Paint(paint, lost)
}

// bar shows how many of the desired Pods are available.
func bar(done, of int) string {
	const most = 10
	of = min(of, most)
	done = min(done, of)
	return strings.Repeat("█", done) + strings.Repeat("░", of-done) + strings.Repeat(" ", max(0, 5-of))
}

func fit(text string, style stage.Style) string {
	if style.Width == 0 {
		return text
	}
	return stage.Cut(text, style.Width)
}
