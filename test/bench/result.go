// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"slices"
	"time"

	"github.com/usher-dev/usher/test/servers"
	"github.com/usher-dev/usher/test/traffic"
)

// pace is how many requests were answered in which time.
type pace struct {
	requests int
	wall     time.Duration
}

func (p pace) perSecond() float64 { return float64(p.requests) / p.wall.Seconds() }

// role is a program whose CPU time is measured.
type role int

const (
	usher role = iota
	registry
	apiServer
	etcd
	controllers // and the scheduler
	harness     // the measuring program, which is also the nodes' agent
	otherPrograms
	roles
)

// cpu is CPU time by role.
type cpu [roles]time.Duration

// result has the measurements of one step, or of one kind of request of a plain client, in all rounds
// together: times and counts are sums, latencies have all samples, and values that must hold in every
// round are the worst ones.
type result struct {
	// step is the measured step; its pods and its pull are those of all rounds together.
	step
	server string // the registry with its version; "" if there is none
	alone  bool   // sent by a plain client without a controller, or of a Deployment
	way    string // how the Pods of a Deployment go; "" for everything else
	// events are writes of events, and refused how often one says that a Pod could not be deleted.
	events, refused int
	rounds          int
	// smallSet is how long the update of a small CloneSet took at the same time; 0 if there was none.
	smallSet time.Duration
	// around is the pace of the plain client right before and after the step.
	around pace
	// wall is until all Pods and entries have reached the result. done is until the
	// CloneSet's status reports that too or, without a controller, until the nodes have
	// done their part.
	wall, done time.Duration
	cpu        cpu
	latency    traffic.Latencies // of the plain client's requests
	own        apiRequests       // Usher's
	theirs     int               // writes by everybody else
	calls      servers.Calls     // to the registry
	peak       float64           // MiB, of any Usher since its start
	tally
	moves
}

func (m *measurement) result(p step) *result {
	p.size = cmp.Or(p.size, m.turn.size)
	p.pods = cmp.Or(p.pods, p.size)
	r := &result{step: p, rounds: 1, own: newRequests()}
	if m.server != nil {
		r.server = m.server.Name()
	}
	return r
}

// merge adds a round's results to those of earlier rounds.
func merge(all, round []*result) []*result {
	for _, r := range round {
		i := slices.IndexFunc(all, func(a *result) bool {
			return a.server == r.server && a.size == r.size && a.alone == r.alone && a.way == r.way && a.name == r.name
		})
		if i < 0 {
			all = append(all, r)
			continue
		}
		all[i].add(r)
	}
	return all
}

func (r *result) add(o *result) {
	r.around.requests += o.around.requests
	r.around.wall += o.around.wall
	r.pods += o.pods
	r.pull += o.pull
	r.rounds += o.rounds
	r.wall += o.wall
	r.done += o.done
	for role := range r.cpu {
		r.cpu[role] += o.cpu[role]
	}
	r.latency = append(r.latency, o.latency...)
	r.out = append(r.out, o.out...)
	r.startup = append(r.startup, o.startup...)
	addAll(r.own.writes, o.own.writes)
	addAll(r.own.rejected, o.own.rejected)
	r.own.reads += o.own.reads
	r.theirs += o.theirs
	r.least = min(r.least, o.least)
	r.peak = max(r.peak, o.peak)
}

// perPod returns a total over the number of Pods, perRound over the number of rounds.
func (r *result) perPod(total float64) float64               { return total / float64(r.pods) }
func (r *result) perRound(total time.Duration) time.Duration { return total / time.Duration(r.rounds) }

// perSecond returns the number of Pods or requests per second.
func (r *result) perSecond() float64 { return float64(r.pods) / r.wall.Seconds() }

// unready returns how long Pods were not ready: new ones until they were ready, those updated in place
// until they were ready again.
func (r *result) unready() traffic.Latencies {
	if len(r.out) > 0 {
		return r.out
	}
	return r.startup
}
