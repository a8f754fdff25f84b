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

	"github.com/usher-dev/usher/test/stage"
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

// panel is what a terminal shows below the log.
type panel struct {
	title string
	rows  [][]stage.Cell
}

// render draws the panel: at most style.Height lines, each at most style.Width cells
// wide.
func (p *panel) render(style stage.Style) []string {
	// A narrow terminal drops the highest number first.
	table := stage.Table{Rows: p.rows, Columns: []stage.Column{
		{Title: "POD"}, {Title: "STATE"}, {Title: "VERSION", Expendable: 1}, {Title: "LISTED"},
		{Title: "REQ/S", Right: true, Expendable: 2}, {Title: "RESTARTS", Right: true, Expendable: 3}, {Title: "WAITS FOR"},
	}}
	if style.Width > 0 {
		p.title = stage.Cut(p.title, style.Width)
	}
	if most := max(style.Height-2, 0); style.Height > 0 && len(table.Rows) > most {
		table.Rows = table.Rows[:most]
	}
	return append([]string{style.Paint(stage.Bold, p.title)}, table.Lines(style)...)
}

// cells are the Pod's cells in the panel.
func (p *pod) cells(requests int, now time.Time) []stage.Cell {
	state, waits := stage.Cell{Text: p.State, Paint: stage.Yellow}, stage.Cell{Text: p.wait().What, Paint: stage.Yellow}
	switch {
	case p.Trouble:
		waits.Paint = stage.Red
	case p.State == terminating:
		state.Paint = stage.Faint
	case p.Available:
		state.Paint = stage.Green
	}
	listed := stage.Cell{Text: "○ no", Paint: stage.Faint}
	if p.listed() {
		listed = stage.Cell{Text: "● yes", Paint: stage.Green}
	}
	if since := p.wait().Since; !since.IsZero() {
		waits.Text += " (" + seconds(now.Sub(since)) + ")"
	}
	return []stage.Cell{
		{Text: p.Name}, state, {Text: cmp.Or(p.version, "-")}, listed, {Text: strconv.Itoa(requests)}, {Text: strconv.Itoa(p.Restarts)}, waits,
	}
}
