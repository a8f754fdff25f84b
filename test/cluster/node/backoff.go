// SPDX-License-Identifier: Apache-2.0

package node

import "time"

// backoffLimits bound a back-off: it doubles from base to max and starts over
// after 2*max without a failure (kubelet: 10 s, 5 min, 10 min).
type backoffLimits struct{ base, max time.Duration }

// backoff is the back-off of one container's restarts or image pulls. The zero
// value is that of a container which has never failed.
type backoff struct {
	wait  time.Duration
	since time.Time // the last time something was tried
}

func (b backoff) expired(at time.Time, limits backoffLimits) bool {
	return b.wait == 0 || at.Sub(b.since) > 2*limits.max
}

// failed counts a failure at the given time; wait says how long to hold off.
func (b backoff) failed(at time.Time, limits backoffLimits) backoff {
	if b.expired(at, limits) {
		return backoff{wait: min(limits.base, limits.max), since: at}
	}
	return backoff{wait: min(2*b.wait, limits.max), since: at}
}

// crashed counts a container's end at the given time and says how long after
// it the next start is due. The first restart is immediate: like a kubelet's,
// the back-off begins with the second.
func (b backoff) crashed(at time.Time, limits backoffLimits) (time.Duration, backoff) {
	var delay time.Duration
	if !b.expired(at, limits) {
		delay = b.wait
	}
	next := b.failed(at, limits)
	next.since = at.Add(delay)
	return delay, next
}
