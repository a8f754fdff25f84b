// SPDX-License-Identifier: Apache-2.0

// Package listing keeps what a service of a registry lists, by the IDs of entries and by whose they are, from one
// pass to the next.
//
// The next listing of a large service differs in few entries. Those that are the same stay the same objects, and the
// maps change by the others: so a pass costs what has changed, and whoever compares a Pod's entries with those of the
// pass before compares pointers.
package listing

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Key says whose an entry is: a Pod's, by its UID, or that of whoever has an address, by another text. False means that
// nobody looks for the entry by its owner.
type Key func(*registry.Entry) (types.UID, bool)

// Listing is what a service lists. It must not be used concurrently.
type Listing struct {
	// from is what it was made from; nil once the pass is over.
	from []registry.Entry
	// sorted means that the IDs are, and that they are unique, as connectors promise.
	sorted  bool
	entries []*registry.Entry
	byID    map[string]*registry.Entry
	byOwner map[types.UID][]*registry.Entry
	key     Key
	// size is about how much memory the entries take, in bytes.
	size int64
}

// Update returns the listing of the entries: the one before, brought up to date, or a new one if either is not sorted
// by ID. Whoever calls it uses the one before no longer; nil stands for none. Entries are copied: none keeps
// the whole answer alive that it came in.
func Update(before *Listing, entries []registry.Entry, key Key) *Listing {
	sorted := true
	for i := 1; i < len(entries); i++ {
		sorted = sorted && entries[i-1].ID < entries[i].ID
	}
	l := before
	if l == nil || !l.sorted || !sorted {
		l = &Listing{
			key: key, byID: make(map[string]*registry.Entry, len(entries)),
			byOwner: make(map[types.UID][]*registry.Entry, len(entries)),
		}
	}
	l.sorted = sorted
	l.update(entries)
	return l
}

// Entries are all that is listed, in the order of the registry's answer.
func (l *Listing) Entries() []*registry.Entry { return l.entries }

// ByID returns the entry with an ID; nil if there is none.
func (l *Listing) ByID(id string) *registry.Entry { return l.byID[id] }

// ByOwner returns the entries of an owner as the listing's Key names it, by ID.
func (l *Listing) ByOwner(owner types.UID) []*registry.Entry { return l.byOwner[owner] }

// IsOf reports whether these entries are what the listing was made from. After Release it is of none.
func (l *Listing) IsOf(entries []registry.Entry) bool {
	return l != nil && l.from != nil && len(l.from) == len(entries) && (len(l.from) == 0 || &l.from[0] == &entries[0])
}

// Release drops the answer that the listing was made from. The listing itself stays.
func (l *Listing) Release() { l.from = nil }

// Size is about how much memory the entries take, in bytes.
func (l *Listing) Size() int64 { return l.size }

// Same reports whether two listings show one entry alike; nil stands for none.
func Same(a, b *registry.Entry) bool {
	return a == b || a != nil && b != nil && a.Version == b.Version && a.NoMetadata == b.NoMetadata && a.Same(*b)
}

// perEntry and perMetadata are about what an entry, and a key of it, take besides their texts, in bytes.
const perEntry, perMetadata = 384, 48

// sizeOf is about how much memory a listed entry takes, in bytes.
func sizeOf(e *registry.Entry) int64 {
	size := perEntry + len(e.ID) + len(e.Address) + len(e.Unsettled) + len(e.Hidden) + len(e.Version) +
		len(e.Owner.Namespace) + len(e.Owner.Registration) + len(e.Owner.Pod) + len(e.Owner.PodUID)
	for key, value := range e.Metadata {
		size += perMetadata + len(key) + len(value)
	}
	return int64(size)
}

// change is what has come and gone with an update. come has the owners of both.
type change struct {
	come map[types.UID][]*registry.Entry
	gone map[*registry.Entry]bool
}

// update compares both lists from the first ID to the last.
func (l *Listing) update(entries []registry.Entry) {
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
			if Same(old, e) {
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
	for owner := range c.come {
		l.regroup(owner, c)
	}
}

func (l *Listing) add(e registry.Entry, c change) {
	l.entries, l.byID[e.ID] = append(l.entries, &e), &e
	l.size += sizeOf(&e)
	if owner, ok := l.key(&e); ok {
		c.come[owner] = append(c.come[owner], &e)
	}
}

func (l *Listing) drop(e *registry.Entry, c change) {
	delete(l.byID, e.ID)
	l.size -= sizeOf(e)
	c.gone[e] = true
	if owner, ok := l.key(e); ok && c.come[owner] == nil {
		c.come[owner] = nil // its entries are grouped anew, even if none has come
	}
}

// regroup sets the entries of an owner anew, all at once: a registry may list any number for one. What
// others keep of the ones before does not change.
func (l *Listing) regroup(owner types.UID, c change) {
	stay := list.Only(l.byOwner[owner], func(e *registry.Entry) bool { return !c.gone[e] })
	if l.byOwner[owner] = append(stay, c.come[owner]...); len(l.byOwner[owner]) == 0 {
		delete(l.byOwner, owner)
	}
	slices.SortStableFunc(l.byOwner[owner], func(a, b *registry.Entry) int { return strings.Compare(a.ID, b.ID) })
}
