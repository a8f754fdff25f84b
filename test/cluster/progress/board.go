// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"strings"
	"time"
)

// Board is the present state of a set of tasks, built from events. The zero value is
// empty. It decides what a person reads; Display writes it.
type Board struct{ rows []row }

type row struct {
	task    string
	state   State
	detail  string
	count   int
	total   int
	began   time.Time // when it left Waiting
	changed time.Time // when it reached its state
}

// Apply applies an event with a task; it ignores remarks.
func (b *Board) Apply(e Event) {
	r := b.row(e.Task)
	if r.began.IsZero() && e.State != Waiting {
		r.began = e.At
	}
	if r.state != e.State {
		r.changed = e.At
	}
	r.state, r.detail, r.count, r.total = e.State, e.Detail, e.Count, e.Total
}

func (b *Board) row(task string) *row {
	for i := range b.rows {
		if b.rows[i].task == task {
			return &b.rows[i]
		}
	}
	b.rows = append(b.rows, row{task: task})
	return &b.rows[len(b.rows)-1]
}

// Lines returns one line per task, in the order in which the tasks first appeared, none
// wider than width.
func (b *Board) Lines(now time.Time, width int) []string {
	name := 0
	for _, r := range b.rows {
		name = max(name, len(r.task))
	}
	list := []string{}
	for _, r := range b.rows {
		list = append(list, clip(fmt.Sprintf("  %-*s  %s", name, r.task, r.text(now)), width))
	}
	return list
}

// Active describes the tasks in progress, for an occasional line.
func (b *Board) Active(now time.Time) string {
	parts := []string{}
	for _, r := range b.rows {
		if r.state != Waiting && !r.state.Final() {
			parts = append(parts, r.task+": "+r.text(now))
		}
	}
	return strings.Join(parts, "; ")
}

// text describes a task's state, and how long it has taken so far.
func (r row) text(now time.Time) string {
	text := string(r.state)
	if r.detail != "" && r.state.Final() {
		text = r.detail
	} else if r.detail != "" {
		text += " (" + r.detail + ")"
	}
	switch {
	case r.total > 0:
		text += fmt.Sprintf(" %d of %d packages", r.count, r.total)
	case r.count > 0:
		text += fmt.Sprintf(" (%d)", r.count)
	}
	if r.state == Waiting {
		return text
	}
	until := now
	if r.state.Final() {
		until = r.changed
	}
	return text + ", " + Short(until.Sub(r.began))
}

// Short formats a duration as a person would: 0.4s, 38s, 4m07s, 3h20m.
func Short(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < 9950*time.Millisecond:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Truncate(time.Second).Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	default:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
}

// clip cuts a line that a terminal would wrap: a wrapped line would falsify the number
// of lines to go up.
func clip(line string, width int) string {
	runes := []rune(line)
	if width <= 0 || len(runes) <= width {
		return line
	}
	return string(runes[:width-1]) + "…"
}
