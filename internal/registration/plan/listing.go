// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// listing is what a target lists, by entry ID and by Pod. The next listing of a large service
// differs in few entries: those that are the same stay the same objects, and the maps change by
// the others.
type listing struct {
	// from is what it was made from; nil once the pass is over.
	from []registry.Entry
	// sorted means that the IDs are, and that they are unique, as connectors promise.
	sorted  bool
	entries []*registry.Entry
	byID    map[string]*registry.Entry
	// byPod has the entries that Usher has written, and in Services all.
	byPod map[types.UID][]*registry.Entry
	// counts reports whether an entry may be in byPod.
	counts func(*registry.Entry) bool
}

// of reports whether l was made from that listing.
func (l *listing) of(from Listing) bool {
	return l != nil && l.from != nil && len(l.from) == len(from.Entries) && (len(l.from) == 0 || &l.from[0] == &from.Entries[0])
}

// newListing returns the listing of the entries: the one before, if it can be brought up to date.
func (ix *index) newListing(l *listing, entries []registry.Entry, gated bool) *listing {
	sorted := true
	for i := 1; i < len(entries); i++ {
		sorted = sorted && entries[i-1].ID < entries[i].ID
	}
	if l == nil || !l.sorted || !sorted {
		cluster := ix.Cluster
		l = &listing{
			byID: make(map[string]*registry.Entry, len(entries)), byPod: make(map[types.UID][]*registry.Entry, len(entries)),
			counts: func(e *registry.Entry) bool { return gated || e.Owner.Cluster == cluster },
		}
	}
	l.sorted = sorted
	l.update(entries)
	return l
}

// update compares both lists from the first ID to the last. Entries are copied, so that one does
// not keep the whole list that it came in.
func (l *listing) update(entries []registry.Entry) {
	before := l.entries
	l.from, l.entries = entries, make([]*registry.Entry, 0, len(entries))
	for i := range entries {
		e := &entries[i]
		for len(before) > 0 && before[0].ID < e.ID {
			l.drop(before[0])
			before = before[1:]
		}
		if len(before) > 0 && before[0].ID == e.ID {
			old := before[0]
			before = before[1:]
			if sameEntry(old, e) {
				l.entries = append(l.entries, old)
				continue
			}
			l.drop(old)
		}
		l.add(*e)
	}
	for _, e := range before {
		l.drop(e)
	}
}

func (l *listing) add(e registry.Entry) {
	l.entries, l.byID[e.ID] = append(l.entries, &e), &e
	if l.counts(&e) {
		uid := types.UID(e.Owner.PodUID)
		l.byPod[uid] = append(slices.Clip(l.byPod[uid]), &e) // what idle Pods keep does not change
		slices.SortStableFunc(l.byPod[uid], func(a, b *registry.Entry) int { return strings.Compare(a.ID, b.ID) })
	}
}

func (l *listing) drop(e *registry.Entry) {
	delete(l.byID, e.ID)
	uid := types.UID(e.Owner.PodUID)
	rest := slices.DeleteFunc(slices.Clone(l.byPod[uid]), func(other *registry.Entry) bool { return other == e })
	if l.byPod[uid] = rest; len(rest) == 0 {
		delete(l.byPod, uid)
	}
}
