// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math/rand/v2"
	"time"
)

// request is one planned request.
type request struct {
	// due is when to send it, counted from the start of the stream.
	due time.Duration
	// caller is who sends it.
	caller int
	// slow is how long the server is asked to take; 0 asks for an immediate answer.
	slow time.Duration
}

// request returns the n-th request, from 0. The whole stream is decided before it starts:
// no server behaviour can change it.
func (o Options) request(n int) request {
	r := request{due: time.Duration(n) * (time.Second / time.Duration(o.Rate)), caller: n % callers}
	random := rand.New(rand.NewPCG(o.Seed, uint64(n)))
	if random.Float64() < o.slowShare {
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
