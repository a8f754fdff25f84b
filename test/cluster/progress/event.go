// SPDX-License-Identifier: Apache-2.0

// Package progress shows long work to a person: one live line per task on a terminal,
// occasional plain lines elsewhere.
package progress

import "time"

// State is what a task does now. People read its text.
type State string

// The states of a task, in the usual order.
const (
	Waiting     State = "waiting"
	Downloading State = "downloading modules"
	Checking    State = "finding what to compile"
	Compiling   State = "compiling"
	Linking     State = "linking"
	Starting    State = "starting"
	Stopping    State = "stopping"
	Done        State = "done"
	Failed      State = "failed"
)

// Final reports whether a task in this state has ended.
func (s State) Final() bool { return s == Done || s == Failed }

// Event is one piece of news. An event without a Task is a general remark.
type Event struct {
	// Task is a component or a binary, for instance "kube-apiserver".
	Task string `json:"task,omitempty"`
	// State is the new state of the task.
	State State `json:"state,omitempty"`
	// Detail is text for people: a remark, a port, the reason for a wait.
	Detail string `json:"detail,omitempty"`
	// Count of Total units (packages) are done; a Total of 0 means that there is
	// nothing to count.
	Count int `json:"count,omitempty"`
	// Total is the number of units of the task.
	Total int `json:"total,omitempty"`
	// At is when it happened.
	At time.Time `json:"at"`
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
