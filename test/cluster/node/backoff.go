// SPDX-License-Identifier: Apache-2.0

package node

import "time"

// backoffLimits limit a backoff: it doubles from base to max and restarts after 2*max
// without a failure (kubelet: 10 s, 5 min, 10 min). client-go's flowcontrol.Backoff was
// not taken: its first wait is not zero.
type backoffLimits struct{ base, max time.Duration }

// backoff is the backoff of one container's restarts or image pulls. The zero value is
// for a container that has never failed.
type backoff struct {
	wait  time.Duration
	since time.Time // the last attempt
}

func (b backoff) expired(at time.Time, limits backoffLimits) bool {
	return b.wait == 0 || at.Sub(b.since) > 2*limits.max
}

// failed counts a failure at the given time; wait is how long to hold off.
func (b backoff) failed(at time.Time, limits backoffLimits) backoff {
	if b.expired(at, limits) {
		return backoff{wait: min(limits.base, limits.max), since: at}
	}
	return backoff{wait: min(2*b.wait, limits.max), since: at}
}

// crashed counts a container's end at the given time and returns how long after it the
// next start is due. The first restart is immediate: like a kubelet's, the backoff
// starts with the second.
func (b backoff) crashed(at time.Time, limits backoffLimits) (time.Duration, backoff) {
	var delay time.Duration
	if !b.expired(at, limits) {
		delay = b.wait
	}
	next := b.failed(at, limits)
	next.since = at.Add(delay)
	return delay, next
}
