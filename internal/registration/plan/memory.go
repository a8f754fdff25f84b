// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usher-dev/usher/internal/registration/listing"
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
		l.Release()
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
			size += l.Size()
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

func (ix *index) shows(l *targetListing, r *registration, p *pod) shown {
	switch {
	case l == nil:
		return shown{}
	case r.byApplication() && l.places:
		return shown{known: true, byPod: ix.ofApplication(r, p, l)}
	}
	return shown{known: true, byID: l.ByID(p.id), byPod: l.entriesOf(p, 0)}
}

func (s shown) same(other shown) bool {
	return s.known == other.known && listing.Same(s.byID, other.byID) &&
		slices.EqualFunc(s.byPod, other.byPod, listing.Same)
}

// readListings sets what the Registrations' current targets list.
func (ix *index) readListings() {
	for _, r := range ix.registrations {
		r.listings, r.failing = make([]*targetListing, len(r.current)), false
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

// targetListing is what a target lists, and how a Pod's entries are found there.
type targetListing struct {
	*listing.Listing
	// followed means that somebody else writes the target: entries are found by address. places means that applications
	// register themselves: entries of nobody are found by address and port.
	followed, places bool
}

// newListing returns the listing of the entries: the one before, if it can be brought up to date.
func (ix *index) newListing(before *targetListing, entries []registry.Entry, t Target) *targetListing {
	if before != nil {
		return &targetListing{listing.Update(before.Listing, entries, ix.keyOf(t)), before.followed, before.places}
	}
	return &targetListing{listing.Update(nil, entries, ix.keyOf(t)), ix.follows(t), ix.hasPlaces(t)}
}

// hasPlaces reports whether entries of nobody in a target may be those of applications that register themselves.
func (ix *index) hasPlaces(t Target) bool {
	return ix.writesTo(t) && slices.ContainsFunc(ix.registrations, (*registration).byApplication)
}

// keyOf finds whose an entry of a target is: those that Usher has written, in Services all, and of a followed target
// those of each address; where applications register themselves, those that others have written, too.
func (ix *index) keyOf(t Target) listing.Key {
	cluster, all, followed, places := ix.Cluster, !ix.writesTo(t), ix.follows(t), ix.hasPlaces(t)
	return func(e *registry.Entry) (types.UID, bool) {
		switch {
		case followed:
			return addressKey(e.Address), true
		case places && e.Owner == (registry.Owner{}):
			return placeKey(e.Address, e.Port), true
		default:
			return types.UID(e.Owner.PodUID), all || e.Owner.Cluster == cluster
		}
	}
}
