// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/list"
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
	// size is about how much memory the entries take, in bytes.
	size int64
}

// perEntry and perMetadata are about what an entry, and a key of it, take besides their texts, in bytes.
const (
	perEntry    = 384
	perMetadata = 48
)

// sizeOf is about how much memory a listed entry takes, in bytes.
func sizeOf(e *registry.Entry) int64 {
	size := perEntry + len(e.ID) + len(e.Address) + len(e.Unsettled) + len(e.Version) +
		len(e.Owner.Namespace) + len(e.Owner.Registration) + len(e.Owner.Pod) + len(e.Owner.PodUID)
	for key, value := range e.Metadata {
		size += perMetadata + len(key) + len(value)
	}
	return int64(size)
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
	c := change{come: map[types.UID][]*registry.Entry{}, gone: map[*registry.Entry]bool{}}
	for i := range entries {
		e := &entries[i]
		for len(before) > 0 && before[0].ID < e.ID {
			l.drop(before[0], c)
			before = before[1:]
		}
		if len(before) > 0 && before[0].ID == e.ID {
			old := before[0]
			before = before[1:]
			if sameEntry(old, e) {
				l.entries = append(l.entries, old)
				continue
			}
			l.drop(old, c)
		}
		l.add(*e, c)
	}
	for _, e := range before {
		l.drop(e, c)
	}
	for uid := range c.come {
		l.regroup(uid, c)
	}
}

// change is what has come and gone with an update. come has the Pods of both.
type change struct {
	come map[types.UID][]*registry.Entry
	gone map[*registry.Entry]bool
}

func (l *listing) add(e registry.Entry, c change) {
	l.entries, l.byID[e.ID] = append(l.entries, &e), &e
	l.size += sizeOf(&e)
	if l.counts(&e) {
		uid := types.UID(e.Owner.PodUID)
		c.come[uid] = append(c.come[uid], &e)
	}
}

func (l *listing) drop(e *registry.Entry, c change) {
	delete(l.byID, e.ID)
	l.size -= sizeOf(e)
	uid := types.UID(e.Owner.PodUID)
	c.gone[e] = true
	if _, known := c.come[uid]; !known {
		c.come[uid] = nil
	}
}

// regroup sets the entries of a Pod anew, all at once: a registry may list any number for one. What
// idle Pods keep does not change.
func (l *listing) regroup(uid types.UID, c change) {
	left := list.Only(l.byPod[uid], func(e *registry.Entry) bool { return !c.gone[e] })
	if l.byPod[uid] = append(left, c.come[uid]...); len(l.byPod[uid]) == 0 {
		delete(l.byPod, uid)
	}
	slices.SortStableFunc(l.byPod[uid], func(a, b *registry.Entry) int { return strings.Compare(a.ID, b.ID) })
}
