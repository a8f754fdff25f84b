// SPDX-License-Identifier: Apache-2.0

// Package view shows a rollout to a person: a live panel with a row per Pod on a
// terminal, and one line per change everywhere.
//
// The display is a pure function of a State, so that it can be tested without a
// terminal; only Screen writes.
package view

import "time"

// State is everything that the panel shows.
type State struct {
	// Now is when the state was taken, Started when the run began.
	Now, Started time.Time
	// Title names the run, for instance "hooks on".
	Title string
	// Phase describes the current phase, for instance "2/6 in-place update".
	Phase string
	// Note is an optional extra line for special circumstances.
	Note string
	// Sets are the groups of Pods, in display order.
	Sets []Set
}

// Set is a group of Pods that belong together.
type Set struct {
	// Name of the set.
	Name string
	// Desired is the desired number of Pods.
	Desired int
	// Updated and Available count Pods as the set's status does.
	Updated, Available int
	// Pods are the rows, in their order.
	Pods []Pod
	// Traffic counts the requests to these Pods.
	Traffic Traffic
}

// Traffic counts requests.
type Traffic struct {
	// Running reports whether requests are being sent.
	Running bool
	// PerSecond is the number of requests in the last second.
	PerSecond int
	// Sent, InFlight and Lost count requests.
	Sent, InFlight, Lost int
}

// Pod is one row.
type Pod struct {
	// Name of the Pod.
	Name string
	// State is its lifecycle state; empty while it has none.
	State string
	// Ready reports whether it is ready, Leaving whether it is being deleted.
	Ready, Leaving bool
	// Version it runs, empty if none yet.
	Version string
	// Address it listens on, empty if none yet.
	Address string
	// Registered reports whether callers can find it, RegisteredSince when that last
	// changed; zero if it never was.
	Registered      bool
	RegisteredSince time.Time
	// PerSecond is the number of requests it got in the last second.
	PerSecond int
	// Restarts counts the restarts of its containers.
	Restarts int
	// Waits is what the Pod waits for; empty if nothing.
	Waits string
	// WaitsSince is when the wait began; zero if unknown.
	WaitsSince time.Time
}
