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

// redraw is the shortest time between two drawings of the panel.
const redraw = 200 * time.Millisecond

// Screen writes the log and, on a terminal, keeps the panel below it. Its
// methods may be called from anywhere.
type Screen struct {
	mu     sync.Mutex
	out    io.Writer
	size   func() (width, height int, ok bool) // not ok: no terminal
	color  bool
	now    func() time.Time
	state  *State
	log    []string // lines that are not written yet
	panel  []string // what was drawn last
	drawn  time.Time
	broken error
}

// NewScreen makes a screen on a file, which is a terminal or is not. getenv
// answers for NO_COLOR and TERM.
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

// Live says that there is a panel.
func (s *Screen) Live() bool {
	_, _, live := s.size()
	return live
}

// Style is what the output can show now.
func (s *Screen) Style() Style {
	width, height, live := s.size()
	return Style{Width: width, Height: height, Color: live && s.color}
}

// Log writes lines above the panel, soon.
func (s *Screen) Log(lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, lines...)
	s.draw(false)
}

// Show changes the panel to a state, soon.
func (s *Screen) Show(state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = &state
	s.draw(false)
}

// Hide takes the panel away and writes what is left of the log.
func (s *Screen) Hide() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = nil
	s.draw(true)
}

// Err is the first error of a write; after one nothing more is written.
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

// frame is what to write in order to replace a panel by log lines and a new
// panel, in one go so that nothing flickers.
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

// height is how many rows lines take on a terminal that may have become
// narrower since they were written.
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
