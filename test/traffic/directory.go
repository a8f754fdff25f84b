// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"slices"
	"time"
)

// directory is the history of a service's addresses, as long as the slowest caller needs
// it. What a caller knows is what the registry knew some time ago, so one history
// serves callers with any lag, and an unreachable registry leaves everyone with the
// last list.
type directory struct {
	keep     time.Duration // how far the slowest caller lags behind
	versions []version     // oldest first; never empty after the first list
}

type version struct {
	at        time.Time
	addresses []string // in order; never changed once stored
}

// replace stores what the registry lists now, and returns what has left and joined.
func (d *directory) replace(now time.Time, addresses []string) (left, joined []string) {
	next := slices.Compact(slices.Sorted(slices.Values(addresses)))
	before := d.current()
	left, joined = missing(before, next), missing(next, before)
	if len(left)+len(joined) > 0 || len(d.versions) == 0 {
		d.versions = append(d.versions, version{at: now, addresses: next})
		d.forget(now)
	}
	return left, joined
}

// current is what the registry lists now, as far as known.
func (d *directory) current() []string {
	if len(d.versions) == 0 {
		return nil
	}
	return d.versions[len(d.versions)-1].addresses
}

// view is what a caller with this lag behind the registry knows.
func (d *directory) view(now time.Time, lag time.Duration) []string {
	seen := now.Add(-lag)
	for _, v := range slices.Backward(d.versions) {
		if !v.at.After(seen) {
			return v.addresses
		}
	}
	return nil
}

// lists reports whether the registry lists an address now.
func (d *directory) lists(address string) bool { return slices.Contains(d.current(), address) }

// caughtUp reports whether every caller knows what the registry knows.
func (d *directory) caughtUp(now time.Time) bool {
	d.forget(now)
	return len(d.versions) <= 1
}

// usable reports whether any caller may still know an address.
func (d *directory) usable(now time.Time, address string) bool {
	d.forget(now)
	return slices.ContainsFunc(d.versions, func(v version) bool { return slices.Contains(v.addresses, address) })
}

// forget drops the versions that no caller can see any more.
func (d *directory) forget(now time.Time) {
	oldest := now.Add(-d.keep)
	for len(d.versions) > 1 && !d.versions[1].at.After(oldest) {
		d.versions = d.versions[1:]
	}
}

// missing lists what one list has and the other lacks.
func missing(have, other []string) []string {
	return slices.DeleteFunc(slices.Clone(have), func(address string) bool { return slices.Contains(other, address) })
}
