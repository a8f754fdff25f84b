// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1alpha1 "github.com/usher-dev/usher/api/apps/v1alpha1"
	"github.com/usher-dev/usher/internal/view"
	"github.com/usher-dev/usher/test/stage"
	"github.com/usher-dev/usher/test/traffic"
)

// screen writes the log and, on a terminal, keeps the panel below it. Its methods are
// safe for concurrent use.
type screen struct {
	out   io.Writer
	style func() stage.Style

	mu      sync.Mutex
	pending []string // lines of the log that the next draw writes
	drawn   int      // lines of the panel that are on the terminal,
	width   int      // when it had this width
}

func newScreen(out *os.File, getenv func(string) string) *screen {
	return &screen{out: out, style: func() stage.Style { return stage.StyleOf(out, getenv) }}
}

// log writes lines: above the panel with the next one, which comes soon.
func (s *screen) log(lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, lines...)
	if s.drawn == 0 {
		s.draw(nil)
	}
}

// show replaces the panel; nil removes it.
func (s *screen) show(p *panel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draw(p)
}

// draw replaces the panel with log lines and a new panel, in one write so that nothing
// flickers.
func (s *screen) draw(p *panel) {
	style, text := s.style(), &strings.Builder{}
	// On a terminal that became narrower, the old panel takes an unknown number of lines.
	if s.drawn > 0 && style.Width == s.width {
		_, _ = fmt.Fprintf(text, "\r\x1b[%dA\x1b[J", s.drawn)
	}
	lines := s.pending
	s.pending, s.drawn, s.width = nil, 0, style.Width
	if p != nil && style.Width > 0 {
		// One cell is kept free: a full line makes some terminals wrap.
		style.Width, style.Height = style.Width-1, style.Height-2
		drawn := append([]string{""}, p.render(style)...)
		lines, s.drawn = append(lines, drawn...), len(drawn)
	}
	for _, line := range lines {
		text.WriteString(line + "\n")
	}
	_, _ = io.WriteString(s.out, text.String()) // There is nobody to report a failed write to.
}

// panel is what the terminal shows below the log.
type panel struct {
	title, note string
	pods, sets  stage.Table
}

// render draws the panel: at most style.Height lines, each at most style.Width cells
// wide.
func (p *panel) render(style stage.Style) []string {
	fit := func(paint stage.Paint, text string) string {
		if style.Width > 0 {
			text = stage.Cut(text, style.Width)
		}
		return style.Paint(paint, text)
	}
	foot := append([]string{""}, p.sets.Lines(style)...)
	if p.note != "" {
		foot = append(foot, fit(stage.Yellow, p.note))
	}
	pods := p.pods
	if limit := max(style.Height-len(foot)-3, 1); style.Height > 0 && len(pods.Rows) > limit {
		hidden := fmt.Sprintf("… %d more Pods", len(pods.Rows)-limit+1)
		pods.Rows = append(pods.Rows[:limit-1:limit-1], []stage.Cell{{Text: hidden, Paint: stage.Faint}})
	}
	return append(append([]string{fit(stage.Bold, p.title), ""}, pods.Lines(style)...), foot...)
}

// newPanel is an empty panel. A narrow terminal drops the columns with the highest number
// first.
func newPanel(title, note string) *panel {
	return &panel{title: title, note: note,
		pods: stage.Table{Columns: []stage.Column{
			{Title: "POD"}, {Title: "STATE"}, {Title: "VERSION", Expendable: 1}, {Title: "ADDRESS", Expendable: 3}, {Title: "IN ETCD"},
			{Title: "REQ/S", Right: true, Expendable: 2}, {Title: "RESTARTS", Right: true, Expendable: 4}, {Title: "WAITS FOR"},
		}},
		sets: stage.Table{Columns: []stage.Column{
			{Title: "WORKLOAD"}, {Title: "LOST", Right: true}, {Title: "AVAILABLE"}, {Title: "UPDATED", Expendable: 1}, {Title: "PHASE", Expendable: 4},
			{Title: "SENT", Right: true, Expendable: 2}, {Title: "REQ/S", Right: true, Expendable: 3}, {Title: "IN FLIGHT", Right: true, Expendable: 5},
		}},
	}
}

// add adds a workload, its Pods and its requests.
func (p *panel) add(w *view.Workload, pods []*pod, name string, stats traffic.Stats, now time.Time) {
	for _, pod := range pods {
		p.pods.Rows = append(p.pods.Rows, pod.cells(stats, now))
	}
	if w == nil {
		w = &view.Workload{}
	}
	row := stage.Cells(name, "", fmt.Sprintf("%s %d of %d", bar(w.Available, w.Desired), w.Available, w.Desired),
		fmt.Sprintf("%d of %d", w.Updated, w.ToUpdate), string(w.Phase),
		stage.Thousands(stats.Sent), strconv.Itoa(stats.PerSecond), strconv.Itoa(stats.InFlight))
	row[1] = lostCell(stats.Lost, stats.Lost)
	p.sets.Rows = append(p.sets.Rows, row)
}

// cells are the Pod's cells in the panel.
func (p *pod) cells(stats traffic.Stats, now time.Time) []stage.Cell {
	state, waits := stage.Cell{Text: p.State, Paint: stage.Yellow}, stage.Cell{Text: p.wait().What, Paint: stage.Yellow}
	switch {
	case p.Trouble:
		waits.Paint = stage.Red
	case p.State == terminating:
		state.Paint = stage.Faint
	case p.State == string(appsv1alpha1.StateNormal) && p.Ready:
		state.Paint = stage.Green
	}
	registered := stage.Cell{Text: "○ no", Paint: stage.Faint}
	if p.listed {
		registered = stage.Cell{Text: "● yes", Paint: stage.Green}
	}
	rate := 0
	for _, instance := range stats.Instances {
		if instance.Addr == p.address {
			rate = instance.PerSecond
		}
	}
	if since := p.wait().Since; !since.IsZero() {
		waits.Text += " (" + seconds(now.Sub(since)) + ")"
	}
	return []stage.Cell{
		{Text: p.Name}, state, {Text: cmp.Or(p.version, "-")}, {Text: cmp.Or(p.address, "-")},
		registered, {Text: strconv.Itoa(rate)}, {Text: strconv.Itoa(p.Restarts)}, waits,
	}
}

// bar shows how many of the desired Pods are available.
func bar(done, of int) string {
	done, of = min(done, of, 10), min(of, 10)
	return strings.Repeat("█", done) + strings.Repeat("░", of-done)
}
