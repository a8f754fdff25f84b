// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math/rand/v2"
	"time"
)

// plan decides the whole stream before it starts: nothing that a server does
// can change it.
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
	// slow is how long the server is asked to take; 0 asks for an answer at once.
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

// lags gives each caller the time that it is behind the registry, spread evenly
// up to longest: callers that refresh their lists each at a moment of its own
// look like that. The last one always lags the whole time.
func lags(callers int, longest time.Duration) []time.Duration {
	out := make([]time.Duration, callers)
	for i := range out {
		out[i] = longest * time.Duration(i+1) / time.Duration(callers)
	}
	return out
}
