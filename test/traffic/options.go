// SPDX-License-Identifier: Apache-2.0

// Package traffic is the callers' side of the demonstration: HTTP requests that find
// their server through etcd, as services outside Kubernetes do.
//
// The stream is an open loop. The due time, the caller and the duration of each request
// are decided beforehand, and a slow answer delays nothing, so that a stalled server
// shows up as stalled. Latency counts from the moment a request was due.
//
// Each caller has a lagging cache of the registry and balances round-robin over what it
// knows. A request is sent once: a request that is refused, cut, late or not answered
// with a 2xx is lost, and nothing is retried.
package traffic

import (
	"math/rand/v2"
	"time"
)

// Options configures the stream.
type Options struct {
	// Source is the registry in which callers find instances.
	Source Source
	// Rate is the number of requests per second, at least one.
	Rate int
	// CacheDelay is how far the slowest caller's cache lags behind the registry;
	// the others lag less, evenly spread.
	CacheDelay time.Duration
	// SlowMin and SlowMax bound how long a slow answer takes, less than Timeout. Without them, no slow
	// answers are requested.
	SlowMin, SlowMax time.Duration
	// NewConnections gives each request a connection of its own. Servers do not reset them:
	// docs/registry/service.md describes what kube-proxy does with the next connection from the same
	// port.
	NewConnections bool
	// Pauses means that callers that know no instance send nothing, because the service is away on
	// purpose. Without it, their requests are lost.
	Pauses bool
	// Timeout is when a request is given up, counted from when it was due; default 10 s.
	Timeout time.Duration
	// OnChange is called for every address that joins or leaves the registry, in order. It
	// must not block or call the client. Optional.
	OnChange func(address string, joined bool)
	// OnLost is called for every lost request as soon as it is known to be lost. The same
	// holds for it. Optional.
	OnLost func(Loss)

	// slowShare is the share of requests for a slow answer; default 0.03.
	slowShare float64
	// keepLosses is how many lost requests the report lists; default 1000. All of them are
	// counted.
	keepLosses int
}

// callers is the number of callers, each with its own cache.
const callers = 8

// request is one planned request.
type request struct {
	// due is when to send it, counted from the start of the stream.
	due time.Duration
	// caller is the number of the caller that sends it.
	caller int
	// slow is how long the server is asked to take; 0 asks for an immediate answer.
	slow time.Duration
}

// request returns the n-th request, from 0. The whole stream is decided before it starts:
// no server behaviour can change it.
func (o Options) request(n int) request {
	r := request{due: time.Duration(n) * (time.Second / time.Duration(o.Rate)), caller: n % callers}
	random := rand.New(rand.NewPCG(0, uint64(n)))
	if o.SlowMax > 0 && random.Float64() < o.slowShare {
		r.slow = o.SlowMin + time.Duration(random.Float64()*float64(o.SlowMax-o.SlowMin))
		r.slow = r.slow.Round(time.Millisecond)
	}
	return r
}

// lags returns how far each caller lags behind the registry, spread evenly up to
// longest, like callers that refresh their lists at different times. The last one
// always has the full lag.
func lags(longest time.Duration) []time.Duration {
	out := make([]time.Duration, callers)
	for i := range out {
		out[i] = longest * time.Duration(i+1) / callers
	}
	return out
}
