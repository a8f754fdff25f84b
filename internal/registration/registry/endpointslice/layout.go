// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// maxEndpoints is the default of Kubernetes' own controller. Every watcher receives
	// whole slices.
	maxEndpoints = 100
	// maxRecords limits a slice's annotation, in bytes. Kubernetes allows 256 KiB for
	// all annotations.
	maxRecords = 192 << 10
)

// shelf is a slice that is being changed.
type shelf struct {
	object *discoveryv1.EndpointSlice
	group  group
	items  []item
	// bytes is how much of the annotation is used.
	bytes int
	// changed names the entries that this write changes. gains means that one of them
	// moves here.
	changed []string
	gains   bool
}

// layout is a service as its slices hold it.
type layout struct {
	// empty is the template of new slices.
	empty discoveryv1.EndpointSlice
	// shelves are Usher's slices, sorted by name; others are the rest.
	shelves []*shelf
	others  []*shelf
}

func newLayout(empty discoveryv1.EndpointSlice, list []discoveryv1.EndpointSlice) *layout {
	l := &layout{empty: empty}
	for n := range list {
		s := &shelf{object: &list[n], group: groupOf(&list[n]), items: itemsOf(&list[n])}
		for _, i := range s.items {
			s.bytes += i.bytes()
		}
		if ours(s.object) {
			l.shelves = append(l.shelves, s)
		} else {
			l.others = append(l.others, s)
		}
	}
	for _, all := range [][]*shelf{l.shelves, l.others} {
		slices.SortFunc(all, func(a, b *shelf) int { return strings.Compare(a.object.Name, b.object.Name) })
	}
	return l
}

// entries returns what callers find, sorted by ID.
func (l *layout) entries() []registry.Entry {
	var all []registry.Entry
	for _, s := range slices.Concat(l.shelves, l.others) {
		for n, i := range s.items {
			all = append(all, decode(i, s.group, fmt.Sprintf("%s.%d", s.object.Name, n)))
		}
	}
	slices.SortStableFunc(all, func(a, b registry.Entry) int { return strings.Compare(a.ID, b.ID) })
	unique := make([]registry.Entry, 0, len(all))
	for _, e := range all {
		if last := len(unique) - 1; last >= 0 && unique[last].ID == e.ID {
			unique[last].Weight = 0
			unique[last].Version += "," + e.Version
			continue
		}
		unique = append(unique, e)
	}
	return unique
}

// change makes the changes, and returns the errors of those it does not make.
func (l *layout) change(changes []registry.Change) (refused error) {
	var puts []placement
	// Removals make room first.
	refused = registry.Decide(l.entries(), registry.Itself, changes, func(c registry.Change, _ *registry.Entry) (err error) {
		if c.Op == registry.Remove {
			l.take(c.Entry.ID)
			return nil
		}
		var p placement
		if p.item, p.group, err = encode(c.Entry); err == nil {
			p.before = l.take(c.Entry.ID)
			puts = append(puts, p)
		}
		return err
	})
	for _, p := range puts {
		l.put(p)
	}
	return refused
}

// placement is an item that needs a slice.
type placement struct {
	item  item
	group group
	// before is the slice that held the entry, nil for a new one.
	before *shelf
}

// take removes the entry from each of Usher's slices that has it, and returns the first
// of them.
func (l *layout) take(id string) *shelf {
	var first *shelf
	for _, s := range l.shelves {
		kept := slices.DeleteFunc(s.items, func(i item) bool {
			mine := i.record != nil && i.record.ID == id
			if mine {
				s.bytes -= i.bytes()
				s.changed = append(s.changed, id)
			}
			return mine
		})
		if len(kept) < len(s.items) && first == nil {
			first = s
		}
		s.items = kept
	}
	return first
}

// put adds an item, to the entry's former slice if possible.
func (l *layout) put(p placement) {
	at := p.before
	if at == nil || !at.fits(p) {
		n := slices.IndexFunc(l.shelves, func(s *shelf) bool { return s.fits(p) })
		if n < 0 {
			l.shelves = append(l.shelves, l.newShelf(p.group))
			n = len(l.shelves) - 1
		}
		at = l.shelves[n]
	}
	at.items = append(at.items, p.item)
	at.bytes += p.item.bytes()
	at.changed = append(at.changed, p.item.record.ID)
	at.gains = true
}

// fits reports whether the item can be added. Records are found by the Pod's UID, so a
// slice may hold each UID only once.
func (s *shelf) fits(p placement) bool {
	return s.group == p.group && len(s.items) < maxEndpoints && s.bytes+p.item.bytes() <= maxRecords &&
		!slices.ContainsFunc(s.items, func(other item) bool { return other.uid() == p.item.uid() })
}

func (l *layout) newShelf(g group) *shelf {
	object := l.empty.DeepCopy()
	object.AddressType, object.Ports = g.family, g.ports()
	return &shelf{group: g, object: object}
}

// writes returns the changed slices, those that gain an entry first: an entry that
// moves is briefly in both slices rather than in neither.
func (l *layout) writes() []*shelf {
	var gain, lose []*shelf
	for _, s := range l.shelves {
		switch {
		case len(s.changed) == 0:
		case s.gains:
			gain = append(gain, s)
		default:
			lose = append(lose, s)
		}
	}
	return append(gain, lose...)
}

// render returns the slice to write.
func (s *shelf) render() (*discoveryv1.EndpointSlice, error) {
	next := s.object.DeepCopy()
	next.Endpoints = make([]discoveryv1.Endpoint, 0, len(s.items))
	records := []*record{}
	for _, i := range s.items {
		next.Endpoints = append(next.Endpoints, i.endpoint)
		if i.record != nil {
			records = append(records, i.record)
		}
	}
	data, err := json.Marshal(records)
	if err != nil {
		return nil, registry.Permanent(fmt.Errorf("encode the entries of slice %s: %w", s.object.Name, err))
	}
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[AnnotationEntries] = string(data)
	return next, nil
}
