// SPDX-License-Identifier: Apache-2.0

package view

import (
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// redraw is the minimum time between two drawings of the panel.
const redraw = 200 * time.Millisecond

// Screen writes the log and, on a terminal, keeps the panel below it. Its methods are
// safe for concurrent use.
type Screen struct {
	mu     sync.Mutex
	out    io.Writer
	size   func() (width, height int, ok bool) // not ok: no terminal
	color  bool
	now    func() time.Time
	state  *State
	log    []string // lines not written yet
	panel  []string // the last drawn panel
	drawn  time.Time
	broken error
}

// NewScreen creates a screen on a file, which may be a terminal. getenv is asked for
// NO_COLOR and TERM.
func NewScreen(out *os.File, getenv func(string) string, now func() time.Time) *Screen {
	return &Screen{
		out:   out,
		color: getenv("NO_COLOR") == "",
		now:   now,
		size: func() (int, int, bool) {
			if !term.IsTerminal(int(out.Fd())) || getenv("TERM") == "dumb" {
				return 0, 0, false
			}
			width, height, err := term.GetSize(int(out.Fd()))
			return width, height, err == nil && width > 0 && height > 0
		},
	}
}

// Live reports whether there is a panel.
func (s *Screen) Live() bool {
	_, _, live := s.size()
	return live
}

// Style is what the output can show now.
func (s *Screen) Style() Style {
	width, height, live := s.size()
	return Style{Width: width, Height: height, Color: live && s.color}
}

// Log writes lines above the panel soon.
func (s *Screen) Log(lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, lines...)
	s.draw(false)
}

// Show changes the panel to a state soon.
func (s *Screen) Show(state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = &state
	s.draw(false)
}

// Hide removes the panel and writes the rest of the log.
func (s *Screen) Hide() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = nil
	s.draw(true)
}

// Err returns the first write error; nothing is written after one.
func (s *Screen) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

func (s *Screen) draw(always bool) {
	columns, rows, live := s.size()
	if !live {
		s.write(frame(nil, 0, s.log, nil))
		s.log = nil
		return
	}
	if !always && s.now().Sub(s.drawn) < redraw {
		return
	}
	var panel []string
	if s.state != nil {
		// One cell is kept free: a full line makes some terminals wrap.
		panel = append([]string{""}, Render(*s.state, Style{Width: columns - 1, Height: rows - 2, Color: s.color})...)
	}
	s.write(frame(s.panel, columns, s.log, panel))
	s.panel, s.log, s.drawn = panel, nil, s.now()
}

func (s *Screen) write(text string) {
	if text == "" || s.broken != nil {
		return
	}
	_, s.broken = io.WriteString(s.out, text)
}

// frame is the output that replaces a panel with log lines and a new panel, in one
// write so that nothing flickers.
func frame(old []string, columns int, log, panel []string) string {
	out := strings.Builder{}
	if up := height(old, columns); up > 0 {
		out.WriteString("\r\x1b[" + strconv.Itoa(up) + "A\x1b[J")
	}
	for _, line := range log {
		out.WriteString(line + "\n")
	}
	for _, line := range panel {
		out.WriteString(line + "\n")
	}
	return out.String()
}

// height is how many rows lines take on a terminal that may have become narrower since
// they were written.
func height(lines []string, columns int) int {
	rows := 0
	for _, line := range lines {
		rows += 1 + max(0, visible(line)-1)/max(columns, 1)
	}
	return rows
}

// visible counts the cells of a line without its escape sequences.
func visible(line string) int {
	cells, escaped := 0, false
	for _, r := range line {
		switch {
		case r == '\x1b':
			escaped = true
		case escaped:
			escaped = r != 'm'
		default:
			cells++
		}
	}
	return cells
}
