// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/usher-dev/usher/test/stage"
)

// screen writes the log and, on a terminal, keeps the panel below it. Its methods are
// safe for concurrent use.
type screen struct {
	out   io.Writer
	style func() stage.Style

	mu      sync.Mutex
	panel   *panel
	pending []string // lines of the log that are not written yet
	drawn   []string // the last drawn panel
	at      time.Time
}

func newScreen(out *os.File, getenv func(string) string) *screen {
	return &screen{out: out, style: func() stage.Style { return stage.StyleOf(out, getenv) }}
}

// log writes lines above the panel soon.
func (s *screen) log(lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, lines...)
	s.draw(false)
}

// show changes the panel soon.
func (s *screen) show(p panel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.panel = &p
	s.draw(false)
}

// hide removes the panel and writes the rest of the log.
func (s *screen) hide() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.panel = nil
	s.draw(true)
}

// draw replaces the panel with log lines and a new panel, in one write so that nothing
// flickers, and rarely enough for a slow terminal.
func (s *screen) draw(always bool) {
	style, text := s.style(), &strings.Builder{}
	live := style.Width > 0
	if live && !always && time.Since(s.at) < drawEvery {
		return
	}
	if up := height(s.drawn, style.Width); up > 0 {
		_, _ = fmt.Fprintf(text, "\r\x1b[%dA\x1b[J", up)
	}
	s.drawn = nil
	if live && s.panel != nil {
		// One cell is kept free: a full line makes some terminals wrap.
		style.Width, style.Height = style.Width-1, style.Height-2
		s.drawn = append([]string{""}, s.panel.render(style)...)
	}
	for _, line := range append(s.pending, s.drawn...) {
		text.WriteString(line + "\n")
	}
	s.pending, s.at = nil, time.Now()
	_, _ = io.WriteString(s.out, text.String()) // There is nobody to report a failed write to.
}

// escapes are sequences that take no cell.
var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// height is how many rows lines take on a terminal that may have become narrower since
// they were written.
func height(lines []string, columns int) int {
	rows := 0
	for _, line := range lines {
		rows += 1 + max(0, utf8.RuneCountInString(escapes.ReplaceAllString(line, ""))-1)/max(columns, 1)
	}
	return rows
}
