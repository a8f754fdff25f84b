// SPDX-License-Identifier: Apache-2.0

// Package progress shows long work to a person: a line for each task that has ended.
// Libraries for live progress bars were not taken: logs and terminals get the same lines.
package progress

import (
	"cmp"
	"fmt"
	"io"
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

// Event reports the state of a task. An event without a Task is a general remark.
type Event struct {
	// Task is a component or a binary, for instance "kube-apiserver".
	Task string
	// State is the new state of the task.
	State State
	// Detail is text for people: a remark, a port, the reason for a wait.
	Detail string
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

// Show returns a sink that writes lines to out, until end is called.
func Show(out io.Writer) (tell Sink, end func()) {
	var mu sync.Mutex
	began, ended := map[string]time.Time{}, false
	take := func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		if _, known := began[e.Task]; !known && e.State != Waiting {
			began[e.Task] = e.At
		}
		if ended || e.Task != "" && e.State != Done && e.State != Failed {
			return
		}
		line := e.Detail
		if e.Task != "" {
			line = fmt.Sprintf("%s: %s, %s", e.Task, cmp.Or(e.Detail, string(e.State)), e.At.Sub(began[e.Task]).Round(100*time.Millisecond))
			delete(began, e.Task)
		}
		_, _ = fmt.Fprintln(out, line) // A screen that is gone must not stop the work that it shows.
	}
	return take, func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
	}
}
