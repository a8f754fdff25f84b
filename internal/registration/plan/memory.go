// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

// Memory keeps what planning for a namespace has found out, so that the next plan looks only
// at what has changed since: at Pods of another version, and at Pods whose entries are listed
// differently. It makes plans cheaper, never different. It must not be used concurrently.
//
// A Pod that is idle (nothing to write, nothing to wait for, no time to look again) stays
// so, whatever the time, until one of these changes:
//   - its resource version;
//   - a Registration, Registry or CloneSet of the namespace, as far as inputsOf has it;
//   - what is listed for it, and whether that is known.
type Memory struct {
	inputs string
	index  *index
}

// Release drops the objects of the last snapshot, when a pass is over. What the memory knows of
// idle Pods stays, with what targets list: the next listing is compared with it.
func (m *Memory) Release() {
	ix := m.index
	if ix == nil {
		return
	}
	ix.Snapshot = Snapshot{}
	for _, l := range ix.listings {
		l.from = nil
	}
	for _, r := range ix.registrations {
		r.listings, r.sets = nil, nil
	}
	for _, p := range ix.pods {
		p.Pod = nil
	}
}

// Size is about how much memory the listings take that the memory keeps, in bytes.
func (m *Memory) Size() (size int64) {
	if m.index != nil {
		for _, l := range m.index.listings {
			size += l.size
		}
	}
	return size
}

// Forget drops all that the memory keeps: the next plan is made as if all Pods and listings had
// changed.
func (m *Memory) Forget() { m.inputs, m.index = "", &index{} }

// inputsOf is everything, apart from Pods and listings, that an idle Pod depends on. A
// Registration that has vanished has no generation: its targets are all there is.
func inputsOf(s *Snapshot) string {
	var b inputs
	b.addNumbers(int64(len(s.Registrations)), int64(len(s.Registries)), int64(len(s.CloneSets)))
	for _, r := range s.Registrations {
		b.add(r.Name, string(r.UID))
		b.addNumbers(r.Generation, int64(len(r.Status.Targets)))
		b.addFlags(r.DeletionTimestamp != nil)
		for _, t := range r.Status.Targets {
			b.add(t.Registry, t.Prefix, t.Service)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Registries)) {
		state := s.Registries[name]
		b.add(name, state.Prefix, state.Label.Key, state.Label.Value)
		b.addFlags(state.Denied, state.Leaving, state.HoldsBack, state.Gated, state.Follows, state.Overrides, state.Counts)
	}
	for _, set := range s.CloneSets {
		b.add(set.Name, string(set.UID))
		b.addNumbers(set.Generation)
	}
	return string(b)
}

// inputs is a text of texts, numbers and flags. The length of each text and of each list is before it: different
// inputs make different texts.
type inputs []byte

func (b *inputs) add(texts ...string) {
	for _, text := range texts {
		b.addNumbers(int64(len(text)))
		*b = append(*b, text...)
	}
}

func (b *inputs) addNumbers(numbers ...int64) {
	for _, number := range numbers {
		*b = append(strconv.AppendInt(*b, number, 10), ' ')
	}
}

func (b *inputs) addFlags(flags ...bool) {
	for _, flag := range flags {
		*b = strconv.AppendBool(*b, flag)
	}
	*b = append(*b, '\n')
}

// recall returns the index of the last plan, if it can be brought up to date.
func (m *Memory) recall(s *Snapshot) *index {
	if m == nil {
		return &index{}
	}
	inputs := inputsOf(s)
	if m.index == nil || m.inputs != inputs {
		m.inputs, m.index = inputs, &index{renewed: m.index != nil}
	}
	return m.index
}

// idle is what the plan of an idle Pod depends on besides the Pod: what each current
// target of its Registrations shows of it.
type idle []shown

// shown is what a target shows of a Pod.
type shown struct {
	known bool
	// byID is the entry with the Pod's ID, byPod are those that the Pod owns.
	byID  *registry.Entry
	byPod []*registry.Entry
}

func (ix *index) shows(l *listing, r *registration, p *pod) shown {
	switch {
	case l == nil:
		return shown{}
	case r.byApplication() && l.places:
		return shown{known: true, byPod: ix.ofApplication(r, p, l)}
	}
	return shown{known: true, byID: l.byID[p.id], byPod: l.entriesOf(p, 0)}
}

func (s shown) same(other shown) bool {
	return s.known == other.known && sameEntry(s.byID, other.byID) && slices.EqualFunc(s.byPod, other.byPod, sameEntry)
}

func sameEntry(a, b *registry.Entry) bool {
	return a == b || a != nil && b != nil && a.Version == b.Version && a.NoMetadata == b.NoMetadata && a.Same(*b)
}

// readListings sets what the Registrations' current targets list.
func (ix *index) readListings() {
	for _, r := range ix.registrations {
		r.listings, r.failing = make([]*listing, len(r.current)), false
		for i, t := range r.current {
			listed, err := ix.look(t)
			if err == nil {
				r.listings[i] = listed
			}
			r.failing = r.failing || len(ix.Failed[t]) > 0 || !ix.writesTo(t) && errors.Is(err, registry.ErrOneService)
		}
	}
}

// stillIdle reports whether the Pod was idle in the last plan, and still is.
func (ix *index) stillIdle(p *pod) bool {
	if p.idle == nil {
		return false
	}
	i := 0
	for _, r := range p.selectedBy {
		if r.failing {
			return false
		}
		for _, l := range r.listings {
			now := ix.shows(l, r, p)
			if !now.same(p.idle[i]) {
				return false
			}
			p.idle[i] = now // keeps no old listing alive
			i++
		}
	}
	return true
}

// noteIdle notes that the Pod is idle, unless something else than Memory's inputs decides how
// long: a node that does not answer, a request for its deletion, targets or Registrations that the Pod is leaving, a
// refused change, an entry that is not as it should be.
func (ix *index) noteIdle(p *pod) {
	if p.silent || p.request != nil || len(p.former) > 0 {
		return
	}
	rest := idle{}
	for _, r := range p.selectedBy {
		if r.failing || len(r.former) > 0 {
			return
		}
		for i, l := range r.listings {
			now := ix.shows(l, r, p)
			if now.known && !ix.asDesired(r, r.current[i], p, now) {
				return
			}
			rest = append(rest, now)
		}
	}
	p.idle = rest
}

// asDesired reports whether a target shows just the Pod's entry, or rightly nothing of it. So
// every entry with the ID of an idle Pod belongs there.
func (ix *index) asDesired(r *registration, t Target, p *pod, now shown) bool {
	switch {
	case !ix.writesTo(t):
		return ix.presence(r, t, p).serving == (ix.desiredAt(r, t, p) == present)
	case r.byApplication():
		return ix.presence(r, t, p).current && ix.desiredAt(r, t, p) == present
	}
	switch want := ix.entry(r, p); ix.desiredOf(r, p) {
	case present:
		return now.byID != nil && want.Same(*now.byID)
	case absent:
		return now.byID == nil && len(now.byPod) == 0
	}
	return false
}

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
	// byPod has the entries that Usher has written, in Services all, and of a followed target those of each address;
	// with places, those that others have written, too, by address and port.
	byPod            map[types.UID][]*registry.Entry
	followed, places bool
	// counts reports whether an entry may be in byPod.
	counts func(*registry.Entry) bool
	// size is about how much memory the entries take, in bytes.
	size int64
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

// of reports whether l was made from that listing.
func (l *listing) of(from Listing) bool {
	return l != nil && l.from != nil && len(l.from) == len(from.Entries) && (len(l.from) == 0 || &l.from[0] == &from.Entries[0])
}

// newListing returns the listing of the entries: the one before, if it can be brought up to date.
func (ix *index) newListing(l *listing, entries []registry.Entry, t Target) *listing {
	sorted := true
	for i := 1; i < len(entries); i++ {
		sorted = sorted && entries[i-1].ID < entries[i].ID
	}
	if l == nil || !l.sorted || !sorted {
		cluster, all := ix.Cluster, !ix.writesTo(t)
		places := !all && slices.ContainsFunc(ix.registrations, (*registration).byApplication)
		l = &listing{
			followed: ix.follows(t), places: places,
			byID: make(map[string]*registry.Entry, len(entries)), byPod: make(map[types.UID][]*registry.Entry, len(entries)),
			counts: func(e *registry.Entry) bool {
				return all || e.Owner.Cluster == cluster || places && e.Owner == (registry.Owner{})
			},
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

// keyOf is the key of an entry in byPod.
func (l *listing) keyOf(e *registry.Entry) types.UID {
	switch {
	case l.followed:
		return addressKey(e.Address)
	case l.places && e.Owner == registry.Owner{}:
		return placeKey(e.Address, e.Port)
	}
	return types.UID(e.Owner.PodUID)
}

func (l *listing) add(e registry.Entry, c change) {
	l.entries, l.byID[e.ID] = append(l.entries, &e), &e
	l.size += sizeOf(&e)
	if l.counts(&e) {
		uid := l.keyOf(&e)
		c.come[uid] = append(c.come[uid], &e)
	}
}

func (l *listing) drop(e *registry.Entry, c change) {
	delete(l.byID, e.ID)
	l.size -= sizeOf(e)
	uid := l.keyOf(e)
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
