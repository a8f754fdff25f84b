// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	liveEvery  = 250 * time.Millisecond // how often a terminal is redrawn
	plainEvery = 15 * time.Second       // how often a log gets a line
)

// Screen is where a Display writes.
type Screen struct {
	// Out takes the text.
	Out io.Writer
	// Width returns the terminal's width in characters; nil if Out is not a terminal,
	// in which case nothing is ever overwritten.
	Width func() int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// ScreenOf describes an open file: a terminal gets live lines, unless it cannot move
// its cursor (TERM=dumb).
func ScreenOf(f *os.File) Screen {
	s := Screen{Out: f}
	if term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		s.Width = func() int {
			width, _, err := term.GetSize(int(f.Fd()))
			if err != nil {
				return 80
			}
			return width
		}
	}
	return s
}

// Display shows events on a screen. Show creates it; its Sink takes events from any
// goroutine.
type Display struct {
	screen Screen
	stop   chan struct{}
	ended  chan struct{}

	mu    sync.Mutex
	board Board
	drawn int // live lines on the terminal
}

// Show starts a display. Close it to leave the last state on the screen.
func Show(screen Screen) *Display {
	if screen.Now == nil {
		screen.Now = time.Now
	}
	d := &Display{screen: screen, stop: make(chan struct{}), ended: make(chan struct{})}
	every := plainEvery
	if d.live() {
		every = liveEvery
	}
	go d.loop(every)
	return d
}

// Sink takes events for the display.
func (d *Display) Sink() Sink { return d.take }

// Close draws the last state and ends the display.
func (d *Display) Close() {
	close(d.stop)
	<-d.ended
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settle()
}

func (d *Display) live() bool { return d.screen.Width != nil }

func (d *Display) loop(every time.Duration) {
	defer close(d.ended)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			d.tick()
		case <-d.stop:
			return
		}
	}
}

// tick runs regularly even without news, because the displayed times advance.
func (d *Display) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.live() {
		d.redraw()
		return
	}
	if text := d.board.Active(d.screen.Now()); text != "" {
		d.print(text + "\n")
	}
}

func (d *Display) take(e Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.Task == "" {
		// A remark starts a new set of tasks: the old ones stay as they are.
		d.settle()
		d.print(e.Detail + "\n")
		return
	}
	d.board.Apply(e)
	switch {
	case d.live() && e.State != Compiling:
		d.redraw()
	case !d.live() && e.State.Final():
		r := d.board.row(e.Task)
		d.print(r.task + ": " + r.text(e.At) + "\n")
	}
}

// settle leaves the live lines on the screen permanently and forgets their tasks.
func (d *Display) settle() {
	if d.live() {
		d.redraw()
	}
	d.board, d.drawn = Board{}, 0
}

// redraw overwrites the live lines in one write, so that they do not flicker.
func (d *Display) redraw() {
	text := &strings.Builder{}
	if d.drawn > 0 {
		// Go up to the first of our lines, then erase everything below. The terminal
		// may have echoed a ^C, which moves the cursor to the right.
		_, _ = fmt.Fprintf(text, "\r\x1b[%dA\x1b[J", d.drawn)
	}
	lines := d.board.Lines(d.screen.Now(), d.screen.Width())
	for _, line := range lines {
		text.WriteString(line + "\n")
	}
	d.drawn = len(lines)
	d.print(text.String())
}

// print writes to the screen. A screen that is gone must not stop the work that it
// shows.
func (d *Display) print(text string) { _, _ = io.WriteString(d.screen.Out, text) }
