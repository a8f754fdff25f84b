// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"slices"
	"strings"
	"time"
)

// Entry is one instance as the registry lists it.
type Entry struct {
	// Key is the entry's key below the service's prefix.
	Key string
	// Addr is the instance's address, host:port.
	Addr string
}

// Change is one instance that joined or left the registry.
type Change struct {
	Entry
	// At is when the client learned of it.
	At time.Time
	// Joined reports whether the instance joined; otherwise it left.
	Joined bool
}

// directory is the history of a service's entries, as long as the slowest caller needs
// it. What a caller knows is what the registry knew some time ago, so one history
// serves callers with any lag, and an unreachable registry leaves everyone with the
// last list.
type directory struct {
	keep     time.Duration // how far the slowest caller lags behind
	versions []version     // oldest first; never empty after the first list
}

type version struct {
	at      time.Time
	entries []Entry // ordered by key; never changed once stored
}

// update puts and removes entries at once. Putting the same entry again, or removing an
// absent key, changes nothing.
func (d *directory) update(now time.Time, put []Entry, removed []string) []Change {
	next := d.current()
	for _, key := range removed {
		next = without(next, key)
	}
	for _, entry := range put {
		next = append(without(next, entry.Key), entry)
	}
	return d.replace(now, next)
}

// replace makes entries the whole list and returns the changes, those that left first.
func (d *directory) replace(now time.Time, entries []Entry) []Change {
	next := append([]Entry(nil), entries...)
	slices.SortFunc(next, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	before := d.current()
	changes := append(missing(before, next, now, false), missing(next, before, now, true)...)
	if len(changes) == 0 && len(d.versions) > 0 {
		return nil
	}
	d.versions = append(d.versions, version{at: now, entries: next})
	d.forget(now)
	return changes
}

// current is what the registry lists now, as far as known.
func (d *directory) current() []Entry {
	if len(d.versions) == 0 {
		return nil
	}
	return d.versions[len(d.versions)-1].entries
}

// view is what a caller with this lag behind the registry knows.
func (d *directory) view(now time.Time, lag time.Duration) []Entry {
	seen := now.Add(-lag)
	for i := len(d.versions) - 1; i >= 0; i-- {
		if !d.versions[i].at.After(seen) {
			return d.versions[i].entries
		}
	}
	return nil
}

// lists reports whether the registry lists an address now.
func (d *directory) lists(addr string) bool { return version{entries: d.current()}.has(addr) }

func (v version) has(addr string) bool {
	return slices.ContainsFunc(v.entries, func(e Entry) bool { return e.Addr == addr })
}

// caughtUp reports whether every caller knows what the registry knows.
func (d *directory) caughtUp(now time.Time) bool {
	d.forget(now)
	return len(d.versions) <= 1
}

// usable reports whether any caller may still know an address.
func (d *directory) usable(now time.Time, addr string) bool {
	d.forget(now)
	return slices.ContainsFunc(d.versions, func(v version) bool { return v.has(addr) })
}

// forget drops the versions that no caller can see any more.
func (d *directory) forget(now time.Time) {
	oldest := now.Add(-d.keep)
	first := 0
	for first+1 < len(d.versions) && !d.versions[first+1].at.After(oldest) {
		first++
	}
	d.versions = d.versions[first:]
}

func without(entries []Entry, key string) []Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.Key == key })
}

// missing lists the entries of have that other lacks.
func missing(have, other []Entry, at time.Time, joined bool) []Change {
	var changes []Change
	for _, entry := range have {
		if !slices.Contains(other, entry) {
			changes = append(changes, Change{Entry: entry, At: at, Joined: joined})
		}
	}
	return changes
}
