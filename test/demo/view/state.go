// SPDX-License-Identifier: Apache-2.0

// Package view shows a rollout to a person: a live panel with a row per Pod on
// a terminal, and one line per change everywhere.
//
// What is shown is a pure function of a State, so that it can be tested without
// a terminal; Screen alone writes.
package view

import "time"

// State is everything that the panel shows.
type State struct {
	// Now is the time at which the state was taken, Started when the run began.
	Now, Started time.Time
	// Title names the run, for instance "hooks on".
	Title string
	// Phase says what is being done, for instance "2/6 in-place update".
	Phase string
	// Note is an extra line for what is special at the moment; optional.
	Note string
	// Sets are the groups of Pods, in the order in which they are shown.
	Sets []Set
}

// Set is a group of Pods that belong together.
type Set struct {
	// Name of the set.
	Name string
	// Desired is the number of Pods that there shall be.
	Desired int
	// Updated and Available count Pods as the set's status does.
	Updated, Available int
	// Pods are the rows, in their order.
	Pods []Pod
	// Traffic are the counters of the requests to these Pods.
	Traffic Traffic
}

// Traffic counts requests.
type Traffic struct {
	// Running says that requests are being sent.
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
	// Ready says that it is ready, Leaving that it is being deleted.
	Ready, Leaving bool
	// Version that it runs, empty if none yet.
	Version string
	// Address where it listens, empty if none yet.
	Address string
	// Registered says that callers can find it, RegisteredSince when that last
	// changed; zero if it never was.
	Registered      bool
	RegisteredSince time.Time
	// PerSecond is the number of requests that it got in the last second.
	PerSecond int
	// Restarts counts the restarts of its containers.
	Restarts int
	// Waits says what the Pod waits for; empty if it waits for nothing.
	Waits string
	// WaitsSince is when the wait began; zero if that is not known.
	WaitsSince time.Time
}
