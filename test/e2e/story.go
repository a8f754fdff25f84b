// SPDX-License-Identifier: Apache-2.0

// Package e2e plays stories on a real node: Usher is installed as users install
// it, containers are real ones, requests come from callers that find Pods through
// a registry, and those that are lost are counted.
//
// run.go is outside: it prepares all that takes a network and a compiler, and runs
// this program again inside a sandbox; inside.go brings the node up there. A story
// (package stories) acts through a Scene: scene.go and act.go. What is reached at
// the end is in goal.go, the outcome in outcome.go and table.go.
package e2e

import "time"

// Registry is a kind of registry that callers find Pods through.
type Registry string

// The registries of the stage. Each is also the name of the Registry object.
const (
	Etcd Registry = "etcd"
	// OwnEtcd is an etcd beside it, for the one story that takes it away.
	OwnEtcd Registry = "own-etcd"
	Consul  Registry = "consul"
	HAProxy Registry = "haproxy"
)

// Loss says what a story may lose.
type Loss string

// The values of Loss.
const (
	// LossNone means that a lost request is a failure. It is what Usher promises
	// wherever it has the chance to act first.
	LossNone Loss = ""
	// LossMeasured means that Usher is not asked before something ends: what that
	// costs is measured.
	LossMeasured Loss = "measured"
)

// Story is one thing that happens to a CloneSet while requests flow.
type Story struct {
	// Name is short, unique, and a name of a namespace.
	Name string
	// About says in a line of text what happens.
	About string
	// Registry is where callers look; default Etcd.
	Registry Registry
	// Alone keeps other stories away while it plays: it disturbs what all share. Its
	// Pods come up while others still play, and then wait for its turn.
	Alone bool
	// Takes is about how long it plays, for those that take long: the longest begin
	// first, so that none is the last one for long.
	Takes time.Duration
	// Loss says what it may lose.
	Loss Loss
	// Propagation is the drain time of its Registration; default 2 s, negative for
	// none at all.
	Propagation time.Duration
	// Play plays it. It returns when its end is reached, or fails through the
	// Scene. Requests flow until it returns.
	Play func(s *Scene)
}

const defaultPropagation = 2 * time.Second

func (s Story) withDefaults() Story {
	if s.Registry == "" {
		s.Registry = Etcd
	}
	if s.Propagation == 0 {
		s.Propagation = defaultPropagation
	}
	return s
}
