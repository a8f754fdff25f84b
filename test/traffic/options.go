// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"time"
)

// Options configures the stream.
type Options struct {
	// Source is the registry in which callers find instances.
	Source Source
	// Rate is the number of requests per second; default 500.
	Rate int
	// Callers is the number of callers, each with its own cache; default 8.
	Callers int
	// CacheDelay is how far the slowest caller's cache lags behind the registry;
	// the others lag less, evenly spread. Default 1 s; negative means no lag.
	CacheDelay time.Duration
	// SlowShare is the share of requests for a slow answer, 0 to 1; default 0.03;
	// negative means none.
	SlowShare float64
	// SlowMin and SlowMax bound how long a slow answer takes; default 1 s and 2 s.
	SlowMin, SlowMax time.Duration
	// Timeout is when a request is given up, counted from when it was due; default 10
	// s.
	Timeout time.Duration
	// MaxInFlight bounds the unanswered requests; one more is lost. Default 4096.
	MaxInFlight int
	// KeepLosses is how many lost requests the report lists; default 1000. All of them
	// are counted.
	KeepLosses int
	// Seed decides which requests are slow, and how slow.
	Seed uint64
	// OnChange is called for every change in the registry, in order. It must not block
	// or call the client. Optional.
	OnChange func(Change)
}

const (
	defaultRate        = 500
	defaultCallers     = 8
	defaultCacheDelay  = time.Second
	defaultSlowShare   = 0.03
	defaultSlowMin     = time.Second
	defaultSlowMax     = 2 * time.Second
	defaultTimeout     = 10 * time.Second
	defaultMaxInFlight = 4096
	defaultKeepLosses  = 1000
)

// withDefaults fills in defaults and refuses invalid values.
func (o Options) withDefaults() (Options, error) {
	orDefault(&o.Rate, defaultRate)
	orDefault(&o.Callers, defaultCallers)
	orDefault(&o.CacheDelay, defaultCacheDelay)
	orDefault(&o.SlowShare, defaultSlowShare)
	orDefault(&o.SlowMin, defaultSlowMin)
	orDefault(&o.SlowMax, max(defaultSlowMax, o.SlowMin))
	orDefault(&o.Timeout, defaultTimeout)
	orDefault(&o.MaxInFlight, defaultMaxInFlight)
	orDefault(&o.KeepLosses, defaultKeepLosses)
	o.CacheDelay = max(o.CacheDelay, 0)
	o.SlowShare = max(o.SlowShare, 0)
	switch {
	case o.Source == nil:
		return o, fmt.Errorf("traffic: Source is missing: callers need a registry to find instances in")
	case o.Rate < 1 || o.Rate > 100_000:
		return o, fmt.Errorf("traffic: a rate of %d requests/s is outside 1 to 100000", o.Rate)
	case o.Callers < 1:
		return o, fmt.Errorf("traffic: %d callers cannot send anything: at least 1", o.Callers)
	case o.SlowShare > 1:
		return o, fmt.Errorf("traffic: a share of %g slow requests is more than all of them: at most 1", o.SlowShare)
	case o.SlowMin > o.SlowMax:
		return o, fmt.Errorf("traffic: SlowMin (%s) is longer than SlowMax (%s)", o.SlowMin, o.SlowMax)
	case o.SlowMax >= o.Timeout:
		return o, fmt.Errorf("traffic: slow answers of %s would all miss the timeout of %s", o.SlowMax, o.Timeout)
	}
	return o, nil
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
