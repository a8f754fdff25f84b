// SPDX-License-Identifier: Apache-2.0

// Package e2e plays stories on a real node: Usher is installed as users install it,
// containers are real, requests come from callers that find Pods through a registry,
// and lost requests are counted.
//
// run.go is outside: it prepares everything that needs a network and a compiler, and
// runs this program again inside a sandbox; inside.go starts the node there. A story
// (package stories) acts through a Scene: scene.go and act.go. The state to reach is in
// goal.go, the outcome in outcome.go and table.go.
package e2e

import "time"

// Registry is a kind of registry that callers find Pods through.
type Registry string

// The registries of the stage. Each is also the name of the Registry object.
const (
	Etcd Registry = "etcd"
	// OwnEtcd is a separate etcd, for the one story that stops it.
	OwnEtcd Registry = "own-etcd"
	Consul  Registry = "consul"
	HAProxy Registry = "haproxy"
)

// Loss is what a story may lose.
type Loss string

// The values of Loss.
const (
	// LossNone means that a lost request is a failure. Usher promises this wherever it
	// can act first.
	LossNone Loss = ""
	// LossMeasured means that something ends without asking Usher: the cost is
	// measured.
	LossMeasured Loss = "measured"
)

// Story is one thing that happens to a CloneSet while requests flow.
type Story struct {
	// Name is short, unique, and a valid namespace name.
	Name string
	// About describes in one line what happens.
	About string
	// Registry is where callers look; default Etcd.
	Registry Registry
	// Alone excludes other stories while it plays, because it disturbs what all share.
	// Its Pods start while others still play, and then wait for its turn.
	Alone bool
	// Takes is roughly how long it plays, for long stories: the longest start first, so
	// that none runs alone at the end for long.
	Takes time.Duration
	// Loss is what it may lose.
	Loss Loss
	// Propagation is the drain time of its Registration; default 2 s, negative for
	// none at all.
	Propagation time.Duration
	// Play plays it. It returns when its end is reached, or fails through the Scene.
	// Requests flow until it returns.
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
