// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math/rand/v2"
	"time"
)

// plan decides the whole stream before it starts: no server behaviour can change it.
type plan struct {
	seed             uint64
	every            time.Duration
	callers          int
	slowShare        float64
	slowMin, slowMax time.Duration
}

// request is one planned request.
type request struct {
	// due is when to send it, counted from the start of the stream.
	due time.Duration
	// caller is who sends it.
	caller int
	// slow is how long the server is asked to take; 0 asks for an immediate answer.
	slow time.Duration
}

// at is the n-th request, from 0.
func (p plan) at(n int) request {
	r := request{due: time.Duration(n) * p.every, caller: n % p.callers}
	random := rand.New(rand.NewPCG(p.seed, uint64(n)))
	if random.Float64() < p.slowShare {
		r.slow = p.slowMin + time.Duration(random.Float64()*float64(p.slowMax-p.slowMin))
		r.slow = r.slow.Round(time.Millisecond)
	}
	return r
}

// lags returns how far each caller lags behind the registry, spread evenly up to
// longest, like callers that refresh their lists at different times. The last one
// always has the full lag.
func lags(callers int, longest time.Duration) []time.Duration {
	out := make([]time.Duration, callers)
	for i := range out {
		out[i] = longest * time.Duration(i+1) / time.Duration(callers)
	}
	return out
}
