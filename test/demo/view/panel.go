// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// rowColumns are the columns of the panel; a narrow terminal drops the highest number
// first.
func rowColumns() []Column {
	return []Column{
		{Title: "POD"},
		{Title: "STATE"},
		{Title: "VERSION", Expendable: 1},
		{Title: "ADDRESS", Expendable: 3},
		{Title: "IN ETCD"},
		{Title: "REQ/S", Right: true, Expendable: 2},
		{Title: "RESTARTS", Right: true, Expendable: 4},
		{Title: "WAITS FOR", Expendable: 0},
	}
}

// Render draws the panel for a state: at most style.Height lines, each at most
// style.Width cells wide.
func Render(state State, style Style) []string {
	rows := [][]Cell{}
	for _, set := range state.Sets {
		for _, pod := range set.Pods {
			rows = append(rows, podRow(pod, state.Now))
		}
	}
	head := []string{headline(state, style), ""}
	foot := []string{""}
	for _, set := range state.Sets {
		foot = append(foot, setLine(set, setNameWidth(state.Sets), style))
	}
	if state.Note != "" {
		foot = append(foot, style.paint(Yellow, fit(state.Note, style)))
	}
	if style.Height > 0 {
		rows = shorten(rows, style.Height-len(head)-len(foot)-1)
	}
	lines := append(head, Table(rowColumns(), rows, style)...)
	return append(lines, foot...)
}

func headline(state State, style Style) string {
	clock := stopwatch(state.Now.Sub(state.Started))
	text := state.Title
	if state.Phase != "" {
		text += "  ·  " + state.Phase
	}
	if style.Width == 0 {
		return style.paint(Bold, text) + gap + clock
	}
	text = Cut(text, style.Width-len(clock)-len(gap))
	padding := strings.Repeat(" ", max(len(gap), style.Width-width(text)-len(clock)))
	return style.paint(Bold, text) + padding + clock
}

// stopwatch formats a time as minutes and seconds.
func stopwatch(d time.Duration) string {
	whole := int(max(d, 0).Seconds())
	return fmt.Sprintf("%d:%02d", whole/60, whole%60)
}

func podRow(pod Pod, now time.Time) []Cell {
	registered := Cell{Text: "○ no", Paint: Faint}
	if pod.Registered {
		registered = Cell{Text: "● yes", Paint: Green}
	}
	rate := Cell{Text: strconv.Itoa(pod.PerSecond)}
	if pod.PerSecond == 0 {
		rate.Paint = Faint
	}
	return []Cell{
		{Text: pod.Name},
		{Text: stateText(pod), Paint: statePaint(pod)},
		{Text: orDash(pod.Version)},
		{Text: orDash(pod.Address)},
		registered,
		rate,
		{Text: strconv.Itoa(pod.Restarts)},
		{Text: waitText(pod, now), Paint: Yellow},
	}
}

func stateText(pod Pod) string {
	switch {
	case pod.Leaving:
		return "Terminating"
	case pod.State == "":
		return "-"
	default:
		return pod.State
	}
}

func statePaint(pod Pod) Paint {
	switch {
	case pod.Leaving:
		return Faint
	case pod.State == "Normal" && pod.Ready:
		return Green
	case pod.State == "Updating" || pod.State == "Updated":
		return Cyan
	default:
		return Yellow
	}
}

func waitText(pod Pod, now time.Time) string {
	if pod.Waits == "" || pod.WaitsSince.IsZero() {
		return pod.Waits
	}
	return pod.Waits + " (" + seconds(now.Sub(pod.WaitsSince)) + ")"
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func setNameWidth(sets []Set) int {
	widest := 0
	for _, set := range sets {
		widest = max(widest, width(set.Name))
	}
	return widest
}

// setLine is the rollout's progress and the traffic of one set.
func setLine(set Set, nameWidth int, style Style) string {
	name := set.Name + strings.Repeat(" ", nameWidth-width(set.Name))
	progress := fmt.Sprintf("%s  %s  %d of %d updated, %d available", name,
		bar(set.Available, set.Desired), set.Updated, set.Desired, set.Available)
	if !set.Traffic.Running && set.Traffic.Sent == 0 {
		return fit(progress+"  ·  no requests yet", style)
	}
	counters := fmt.Sprintf("  ·  %s sent, %d/s, %d in flight, ", Thousands(set.Traffic.Sent), set.Traffic.PerSecond, set.Traffic.InFlight)
	lost := Thousands(set.Traffic.Lost) + " lost"
	paint := Green
	if set.Traffic.Lost > 0 {
		paint = Red
	}
	if style.Width > 0 && width(progress+counters+lost) > style.Width {
		// People look for the lost requests, so the rest is cut first.
		return Cut(progress, style.Width-width(lost)-len(gap)) + gap + style.paint(paint, Cut(lost, style.Width))
	}
	return progress + counters + style.paint(paint, lost)
}

// bar shows how many of the desired Pods are available.
func bar(done, of int) string {
	const most = 10
	of, done = min(max(of, 0), most), min(max(done, 0), most)
	return strings.Repeat("█", min(done, of)) + strings.Repeat("░", max(of-done, 0)) + strings.Repeat(" ", max(0, 5-of))
}

// Thousands formats a number with a thin gap between groups of three digits.
func Thousands(n int) string {
	digits := strconv.Itoa(n)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return sign + digits
}

// shorten makes room for a last row that says how many rows are hidden.
func shorten(rows [][]Cell, limit int) [][]Cell {
	limit = max(limit, 1)
	if len(rows) <= limit {
		return rows
	}
	hidden := fmt.Sprintf("… %d more Pods", len(rows)-limit+1)
	return append(rows[:limit-1:limit-1], []Cell{{Text: hidden, Paint: Faint}})
}

func fit(text string, style Style) string {
	if style.Width == 0 {
		return text
	}
	return Cut(text, style.Width)
}
