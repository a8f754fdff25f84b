// SPDX-License-Identifier: Apache-2.0

// Package progress shows long work to a person, in lines of text: each task when it
// ends, and from time to time what is still going on. Libraries for live progress bars
// were not taken: logs and terminals get the same lines.
package progress

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// State is what a task does now. People read its text.
type State string

// The states of a task, in the usual order.
const (
	Waiting   State = "waiting"
	Checking  State = "checking what to get"
	Compiling State = "compiling"
	Starting  State = "starting"
	Stopping  State = "stopping"
	Done      State = "done"
	Failed    State = "failed"
)

func (s State) final() bool { return s == Done || s == Failed }

// Event reports the state of a task. An event without a Task is a general remark.
type Event struct {
	// Task is a component or a binary, for instance "kube-apiserver".
	Task string
	// State is the new state of the task.
	State State
	// Detail is text for people: a remark, a port, the reason for a wait.
	Detail string
	// Count is how many units (packages) are done; 0 if there is nothing to count.
	Count int
	// At is when it happened.
	At time.Time
}

// Sink takes events. It must be quick and safe for concurrent use. A nil Sink is
// allowed everywhere and drops events.
type Sink func(Event)

// Tell sends an event; a nil Sink drops it.
func (s Sink) Tell(e Event) {
	if s == nil {
		return
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	s(e)
}

// every is how often a Display lists what is still going on.
const every = 15 * time.Second

// Display writes events as lines. Show creates it; its Sink takes events from any
// goroutine.
type Display struct {
	out  io.Writer
	stop func()

	mu    sync.Mutex
	tasks []*task // those that have not ended
}

// task is what is known of a task.
type task struct {
	last  Event
	began time.Time // when it left Waiting
}

// Show starts a display that writes to out. Close ends it.
func Show(out io.Writer) *Display {
	d, ended := &Display{out: out}, make(chan struct{})
	d.stop = sync.OnceFunc(func() { close(ended) })
	go func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case at := <-ticker.C:
				d.list(at)
			case <-ended:
				return
			}
		}
	}()
	return d
}

// Sink takes events for the display.
func (d *Display) Sink() Sink { return d.take }

// Close ends the display.
func (d *Display) Close() { d.stop() }

func (d *Display) take(e Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.Task == "" {
		d.print(e.Detail)
		return
	}
	i := slices.IndexFunc(d.tasks, func(t *task) bool { return t.last.Task == e.Task })
	if i < 0 {
		i, d.tasks = len(d.tasks), append(d.tasks, &task{})
	}
	t := d.tasks[i]
	if t.last = e; t.began.IsZero() && e.State != Waiting {
		t.began = e.At
	}
	if e.State.final() {
		d.print(t.text(e.At))
		d.tasks = slices.Delete(d.tasks, i, i+1)
	}
}

// list writes what is still going on.
func (d *Display) list(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var parts []string
	for _, t := range d.tasks {
		if t.last.State != Waiting {
			parts = append(parts, t.text(now))
		}
	}
	if len(parts) > 0 {
		d.print(strings.Join(parts, "; "))
	}
}

// text describes a task's state, and how long it has taken so far.
func (t *task) text(now time.Time) string {
	text := string(t.last.State)
	if t.last.Detail != "" && t.last.State.final() {
		text = t.last.Detail
	} else if t.last.Detail != "" {
		text += " (" + t.last.Detail + ")"
	}
	if t.last.Count > 0 {
		text += fmt.Sprintf(" (%d packages)", t.last.Count)
	}
	return t.last.Task + ": " + text + ", " + now.Sub(t.began).Round(100*time.Millisecond).String()
}

// print writes a line. A screen that is gone must not stop the work that it shows.
func (d *Display) print(line string) { _, _ = fmt.Fprintln(d.out, line) }
