// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
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
	// shelves are the slices, sorted by name. Only those that are Usher's change.
	shelves []*shelf
}

func newLayout(empty discoveryv1.EndpointSlice, list []discoveryv1.EndpointSlice) *layout {
	l := &layout{empty: empty}
	for n := range list {
		s := &shelf{object: &list[n], group: groupOf(&list[n]), items: itemsOf(&list[n])}
		for _, i := range s.items {
			s.bytes += i.bytes()
		}
		l.shelves = append(l.shelves, s)
	}
	slices.SortFunc(l.shelves, func(a, b *shelf) int { return strings.Compare(a.object.Name, b.object.Name) })
	return l
}

// entries returns what callers find, sorted by ID.
func (l *layout) entries() []registry.Entry {
	var all []registry.Entry
	for _, s := range l.shelves {
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
	// Removals make room first.
	placements, refused := registry.Decide(l.entries(), registry.Itself, changes, func(c registry.Change, _ *registry.Entry) (p placement, err error) {
		if c.Op == registry.Put {
			p.item, p.group, err = encoded(c.Entry)
		}
		if err == nil {
			p.before = l.take(c.Entry.ID)
		}
		return p, err
	})
	for _, p := range placements {
		if p.item.record != nil {
			l.put(p)
		}
	}
	return refused
}

// placement is an item that needs a slice, empty for one that is removed.
type placement struct {
	item  item
	group group
	// before is the slice that held the entry, nil for a new one.
	before *shelf
}

// take removes the entry from each of Usher's slices that has it, and returns the first
// of them. Others have no records.
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
			object := l.empty.DeepCopy()
			object.AddressType, object.Ports = p.group.family, p.group.ports()
			l.shelves = append(l.shelves, &shelf{group: p.group, object: object})
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
	return ours(s.object) && s.group == p.group && len(s.items) < maxEndpoints && s.bytes+p.item.bytes() <= maxRecords &&
		!slices.ContainsFunc(s.items, func(other item) bool { return other.uid() == p.item.uid() })
}

// writes returns the changed slices, those that gain an entry first: an entry that
// moves is briefly in both slices rather than in neither.
func (l *layout) writes() []*shelf {
	changed := func(gains bool) []*shelf {
		return list.Only(l.shelves, func(s *shelf) bool { return len(s.changed) > 0 && s.gains == gains })
	}
	return append(changed(true), changed(false)...)
}

// render returns the slice to write.
func (s *shelf) render() *discoveryv1.EndpointSlice {
	next := s.object.DeepCopy()
	next.Endpoints = make([]discoveryv1.Endpoint, 0, len(s.items))
	records := []*record{}
	for _, i := range s.items {
		next.Endpoints = append(next.Endpoints, i.endpoint)
		if i.record != nil {
			records = append(records, i.record)
		}
	}
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, AnnotationEntries, string(encode.JSON(records)))
	return next
}

// maxRecord limits one record, in bytes, because an annotation should not hold more.
const maxRecord = 8 << 10

// record holds what an endpoint has no fields for.
type record struct {
	ID       string            `json:"id"`
	Weight   int32             `json:"weight"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Owner    registry.Owner    `json:"owner"`
}

// group is what all endpoints of a slice share.
type group struct {
	family      discoveryv1.AddressType
	port        int32
	portName    string
	appProtocol string
}

// item is an endpoint with its record, nil for an endpoint that Usher did not write.
type item struct {
	endpoint discoveryv1.Endpoint
	record   *record
}

func (i item) uid() types.UID {
	if i.endpoint.TargetRef == nil {
		return ""
	}
	return i.endpoint.TargetRef.UID
}

// bytes returns the item's share of the annotation.
func (i item) bytes() int {
	if i.record == nil {
		return 0
	}
	return len(encode.JSON(i.record)) + 1
}

// encode converts an entry. Errors are permanent, because the API server would refuse
// the whole slice.
func encoded(e registry.Entry) (item, group, error) {
	address, err := netip.ParseAddr(e.Address)
	if err != nil {
		return item{}, group{}, registry.Permanent(fmt.Errorf("address: %w", err))
	}
	if err := callable(address); err != nil {
		return item{}, group{}, registry.Permanent(err)
	}
	g := group{family: discoveryv1.AddressTypeIPv4, port: e.Port}
	if address.Is6() {
		g.family = discoveryv1.AddressTypeIPv6
	}
	rest := maps.Clone(e.Metadata)
	if g.portName, g.appProtocol, err = portMetadata(rest); err != nil {
		return item{}, group{}, registry.Permanent(fmt.Errorf("instance.metadata: %w", err))
	}
	made := item{
		endpoint: discoveryv1.Endpoint{
			Addresses:  []string{e.Address},
			Conditions: discoveryv1.EndpointConditions{Ready: new(e.Weight > 0), Serving: new(true), Terminating: new(e.Weight == 0)},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: e.Owner.Namespace, Name: e.Owner.Pod, UID: types.UID(e.Owner.PodUID),
			},
		},
		record: &record{ID: e.ID, Weight: e.Weight, Metadata: rest, Owner: e.Owner},
	}
	if size := made.bytes(); size > maxRecord {
		return item{}, group{}, registry.Permanent(fmt.Errorf(
			"instance.metadata makes the entry %d bytes long: remove some, an EndpointSlice has room for %d", size, maxRecord))
	}
	return made, g, nil
}

// callable refuses addresses that Kubernetes does not accept for an endpoint.
func callable(address netip.Addr) error {
	switch {
	case address.Is4In6() || address.Zone() != "":
		return fmt.Errorf("address %s is neither plain IPv4 nor plain IPv6", address)
	case address.IsUnspecified(), address.IsLoopback(), address.IsLinkLocalUnicast(), address.IsLinkLocalMulticast():
		return fmt.Errorf("address %s: Kubernetes takes no unspecified, loopback or link-local one", address)
	}
	return nil
}

// portMetadata removes the port's own keys from the metadata.
func portMetadata(metadata map[string]string) (name, protocol string, err error) {
	name, named := metadata[MetaPortName]
	if why := validation.IsDNS1123Label(name); named && len(why) > 0 {
		return "", "", fmt.Errorf("%s %q: %s", MetaPortName, name, why[0])
	}
	protocol, spoken := metadata[MetaAppProtocol]
	if why := validation.IsQualifiedName(protocol); spoken && len(why) > 0 {
		return "", "", fmt.Errorf("%s %q: %s", MetaAppProtocol, protocol, why[0])
	}
	delete(metadata, MetaPortName)
	delete(metadata, MetaAppProtocol)
	return name, protocol, nil
}

// groupOf returns the group of a slice. A slice in a form that Usher does not write has
// the port 0, which no entry has.
func groupOf(s *discoveryv1.EndpointSlice) group {
	g := group{family: s.AddressType}
	if len(s.Ports) != 1 {
		return g
	}
	p := s.Ports[0]
	if ptr.Deref(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP && p.Port != nil {
		g.port, g.portName, g.appProtocol = *p.Port, ptr.Deref(p.Name, ""), ptr.Deref(p.AppProtocol, "")
	}
	return g
}

// ports returns the ports of a slice of the group.
func (g group) ports() []discoveryv1.EndpointPort {
	p := discoveryv1.EndpointPort{Name: &g.portName, Port: &g.port, Protocol: new(corev1.ProtocolTCP)}
	if g.appProtocol != "" {
		p.AppProtocol = &g.appProtocol
	}
	return []discoveryv1.EndpointPort{p}
}

// decode converts an item. It never fails: an endpoint that Usher did not write is an
// entry of that name without an owner.
func decode(i item, g group, name string) registry.Entry {
	e := registry.Entry{ID: name, Port: g.port, Weight: 1}
	if len(i.endpoint.Addresses) > 0 {
		e.Address = i.endpoint.Addresses[0]
	}
	if r := i.record; r != nil {
		e.ID, e.Weight, e.Metadata = r.ID, r.Weight, maps.Clone(r.Metadata)
		if r.Owner.Cluster != "" {
			e.Owner = r.Owner
		}
	}
	for key, value := range map[string]string{MetaPortName: g.portName, MetaAppProtocol: g.appProtocol} {
		if value != "" {
			e.SetMetadata(key, value)
		}
	}
	if !ptr.Deref(i.endpoint.Conditions.Ready, true) {
		e.Weight = 0
	}
	// It changes only with the entry. The slice's own version would also change with each
	// neighbour and cause conflicts.
	e.Version = registry.Digest(encode.JSON([]any{i.endpoint, i.record, g.family, g.port, g.portName, g.appProtocol}))
	return e
}

// Endpoint is one endpoint of a slice, for programs that serve the slice to others.
type Endpoint struct {
	registry.Entry
	// Conditions are the endpoint's conditions. Absent ones have Kubernetes' default
	// meaning.
	Conditions discoveryv1.EndpointConditions
}

// Endpoints returns the endpoints of a slice with exactly one TCP port. An address and
// a port cannot describe the endpoints of other slices.
func Endpoints(s *discoveryv1.EndpointSlice) []Endpoint {
	g := groupOf(s)
	if g.port == 0 || g.family == discoveryv1.AddressTypeFQDN {
		return nil
	}
	items := itemsOf(s)
	found := make([]Endpoint, 0, len(items))
	for n, i := range items {
		found = append(found, Endpoint{
			Entry: decode(i, g, fmt.Sprintf("%s.%d", s.Name, n)), Conditions: i.endpoint.Conditions,
		})
	}
	return found
}

// itemsOf splits a slice into items.
func itemsOf(s *discoveryv1.EndpointSlice) []item {
	var records []record
	// If the annotation is unreadable, the endpoints have no owner.
	if err := json.Unmarshal([]byte(s.Annotations[AnnotationEntries]), &records); err != nil || !ours(s) {
		records = nil
	}
	items := make([]item, 0, len(s.Endpoints))
	byUID := list.By(list.Pointers(records), func(r *record) types.UID { return types.UID(r.Owner.PodUID) })
	for _, endpoint := range s.Endpoints {
		i := item{endpoint: endpoint}
		if uid := i.uid(); uid != "" {
			i.record = byUID[uid]
			delete(byUID, uid)
		}
		items = append(items, i)
	}
	return items
}

func ours(s *discoveryv1.EndpointSlice) bool { return s.Labels[discoveryv1.LabelManagedBy] == Manager }
