// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/usher-dev/usher/internal/encode"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// maxMessage limits one update, in bytes. The protocol's limit is 64 KiB.
	maxMessage = 48 << 10
	// maxData limits a TXT record, in bytes.
	maxData = 16 << 10
	// maxSet limits the SRV records of a service, in bytes: they must fit into 64 KiB
	// together with the rest of an answer.
	maxSet = 60 << 10
	// maxWeight is the largest weight of an SRV record.
	maxWeight = 65535
)

// operation is a change on its way to the server.
type operation struct {
	change registry.Change
	host   string
	srv    *dns.SRV
	others []dns.RR
	// have is the instance as it was read.
	have *instance
}

// Apply implements registry.Connector. Many changes share one message, which is all or
// nothing. If it conflicts with another writer, Apply reads everything again and
// resends the remaining changes.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	n, err := r.names(service)
	if err != nil {
		return err
	}
	return registry.Rounds(changes, func(changes []registry.Change) ([]registry.Change, error) { return r.round(ctx, n, changes) })
}

// round reads, checks and sends changes. It returns those to retry.
func (r *Registry) round(ctx context.Context, n names, changes []registry.Change) (again []registry.Change, err error) {
	srvs, err := r.srvs(ctx, n)
	if err != nil {
		return nil, err
	}
	hosts := list.Map(changes, func(c registry.Change) string { return n.host(c.Entry.ID) })
	instances, err := r.read(ctx, n, hosts, srvs)
	if err != nil {
		return nil, err
	}
	ready, refused := r.operations(n, changes, instances, srvs)
	if len(ready) > 0 {
		again, err = r.update(ctx, ready)
	}
	return again, errors.Join(refused, err)
}

// operations converts the changes that are left to make to operations for the server.
func (r *Registry) operations(n names, changes []registry.Change, instances []*instance, srvs []*dns.SRV) (ready []*operation, refused error) {
	size := 0
	for _, srv := range srvs {
		size += sizeOf(srv)
	}
	there := map[string]*instance{}
	var listed []registry.Entry
	for at, i := range instances {
		id := changes[at].Entry.ID
		there[id] = i
		if i.listed() {
			e := i.entry
			e.ID = id // That of another writer's is the name.
			listed = append(listed, e)
		}
	}
	return registry.Decide(listed, registry.Itself, changes, func(change registry.Change, _ *registry.Entry) (op *operation, err error) {
		op = &operation{change: change, host: n.host(change.Entry.ID), have: there[change.Entry.ID]}
		if change.Op == registry.Put {
			if op.srv, op.others, err = r.wanted(n, change.Entry); err == nil {
				err = op.fits(&size)
			}
		}
		return op, err
	})
}

// sizeOf returns the size of an SRV record in an answer, in bytes. The name is written
// once for all records; targets are not compressed.
func sizeOf(srv *dns.SRV) int { return 2 + 10 + 6 + len(srv.Target) + 1 }

// fits refuses a new instance whose name is another writer's, or that does not fit. size
// is the size of the SRV records so far.
func (op *operation) fits(size *int) error {
	switch {
	case op.have.listed():
		return nil
	case op.have.exists() && op.have.entry.Owner.Cluster != op.change.Entry.Owner.Cluster:
		return fmt.Errorf("%s has records of another writer: %w", op.host, registry.ErrForeign)
	case *size+sizeOf(op.srv) > maxSet:
		return registry.Permanent(errors.New("the SRV records of the service would not fit into one answer: " +
			"spread the instances over several services"))
	}
	*size += sizeOf(op.srv)
	return nil
}

// update packs the operations into as few messages as possible. It returns the changes
// of messages that were not applied, to retry them.
func (r *Registry) update(ctx context.Context, ready []*operation) (again []registry.Change, err error) {
	err = r.connect(ctx, func(send exchange) error {
		for len(ready) > 0 {
			message := new(dns.Msg)
			message.SetUpdate(r.zone)
			count := 0
			for size := 0; count < len(ready); count++ {
				part := new(dns.Msg)
				ready[count].add(part)
				if size += part.Len(); count > 0 && size > maxMessage {
					break
				}
				message.Answer = append(message.Answer, part.Answer...)
				message.Ns = append(message.Ns, part.Ns...)
			}
			batch := ready[:count]
			ready = ready[count:]
			_, err := send(message)
			if errors.Is(err, errPrerequisite) {
				again = append(again, list.Map(batch, func(op *operation) registry.Change { return op.change })...)
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	return again, err
}

// add writes an operation into a message: what was read as prerequisites, and the
// difference to the wanted records.
func (op *operation) add(m *dns.Msg) {
	// The library takes the class of the prerequisites from the question.
	m.Question = []dns.Question{{Qclass: dns.ClassINET}}
	defer func() { m.Question = nil }()
	for n, kind := range kinds {
		have, name := general(op.have.sets[n]), []dns.RR{&dns.ANY{Hdr: dns.RR_Header{Name: op.host, Rrtype: kind}}}
		if len(have) == 0 {
			m.RRsetNotUsed(name)
			continue
		}
		for _, rr := range have {
			rr.Header().Ttl = 0
		}
		m.Used(have)
		m.RemoveRRset(name)
	}
	m.Remove(general(op.have.srvs))
	if op.change.Op == registry.Put {
		m.Insert(append([]dns.RR{op.srv}, op.others...))
	}
}

// maxText is the maximum length of one string of a TXT record, in bytes.
const maxText = 255

// stored is the JSON in an instance's TXT record.
type stored struct {
	ID       string            `json:"id"`
	Owner    registry.Owner    `json:"usher"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// kinds are the types of an instance's records, beside SRV.
var kinds = [...]uint16{dns.TypeTXT, dns.TypeA, dns.TypeAAAA}

// instance is what the zone holds for an instance.
type instance struct {
	host  string
	entry registry.Entry
	srvs  []*dns.SRV
	// sets are the TXT, A and AAAA records, in the order of kinds.
	sets [len(kinds)][]dns.RR
}

// listed reports whether callers find it.
func (i *instance) listed() bool { return len(i.srvs) > 0 }

// exists reports whether it has records other than SRV.
func (i *instance) exists() bool { return len(slices.Concat(i.sets[:]...)) > 0 }

// List implements registry.Connector. It queries the SRV records, and for the address
// and TXT records of each target in the zone. That needs only the right to query, and
// reads nothing of other services.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	n, err := r.names(service)
	if err != nil {
		return nil, err
	}
	srvs, err := r.srvs(ctx, n)
	if err != nil {
		return nil, err
	}
	var hosts []string
	entries := []registry.Entry{}
	for _, srv := range srvs {
		target := dns.CanonicalName(srv.Target)
		if strings.HasSuffix(target, "."+n.base) {
			hosts = append(hosts, target)
			continue
		}
		outside := registry.Entry{ID: target, Address: target, Port: int32(srv.Port), Weight: int32(srv.Weight)}
		outside.Version = version([]dns.RR{srv})
		entries = append(entries, outside)
	}
	slices.Sort(hosts)
	instances, err := r.read(ctx, n, slices.Compact(hosts), srvs)
	if err != nil {
		return nil, err
	}
	entries = append(entries, list.Map(instances, func(i *instance) registry.Entry { return i.entry })...)
	registry.Sort(entries)
	return entries, nil
}

func (r *Registry) srvs(ctx context.Context, n names) ([]*dns.SRV, error) {
	question := dns.Question{Name: n.srv, Qtype: dns.TypeSRV, Qclass: dns.ClassINET}
	answers, err := r.ask(ctx, []dns.Question{question})
	if err != nil {
		return nil, err
	}
	if answers[0].Truncated {
		return nil, registry.Permanent(fmt.Errorf("the records of %s do not fit into one answer: "+
			"spread the instances over several services", n.srv))
	}
	return records[*dns.SRV](answers[0], question), nil
}

// read asks what the zone holds for the instances with these names.
func (r *Registry) read(ctx context.Context, n names, hosts []string, srvs []*dns.SRV) ([]*instance, error) {
	var questions []dns.Question
	for _, host := range hosts {
		for _, kind := range kinds {
			questions = append(questions, dns.Question{Name: host, Qtype: kind, Qclass: dns.ClassINET})
		}
	}
	answers, err := r.ask(ctx, questions)
	if err != nil {
		return nil, err
	}
	byTarget := map[string][]*dns.SRV{}
	for _, srv := range srvs {
		target := dns.CanonicalName(srv.Target)
		byTarget[target] = append(byTarget[target], srv)
	}
	instances := make([]*instance, 0, len(hosts))
	for at, host := range hosts {
		i := &instance{host: host, srvs: byTarget[host]}
		for n := range kinds {
			i.sets[n] = records[dns.RR](answers[at*len(kinds)+n], questions[at*len(kinds)+n])
		}
		i.understand(n)
		instances = append(instances, i)
	}
	return instances, nil
}

// understand makes the entry. An instance without a TXT record from Usher is foreign.
func (i *instance) understand(n names) {
	addresses := list.Map(slices.Concat(i.sets[1:]...), func(rr dns.RR) string { return dns.Field(rr, 1) })
	i.entry = registry.Entry{ID: strings.TrimSuffix(i.host, "."+n.base), Address: strings.Join(addresses, ",")}
	said, ours := i.stored(n)
	if ours {
		i.entry.ID, i.entry.Owner, i.entry.Metadata = said.ID, said.Owner, said.Metadata
	}
	if !i.listed() {
		return
	}
	i.entry.Port, i.entry.Weight = int32(i.srvs[0].Port), int32(i.srvs[0].Weight)
	i.entry.Version = version(general(i.srvs), slices.Concat(i.sets[:]...))
	if ours && len(i.srvs) > 1 {
		i.entry.Unsettled = fmt.Sprintf("%d SRV records lead to it", len(i.srvs))
	}
}

func (i *instance) stored(n names) (stored, bool) {
	var said stored
	if txts := i.sets[0]; len(txts) != 1 || json.Unmarshal(unescape(txts[0].(*dns.TXT).Txt), &said) != nil {
		return said, false
	}
	return said, said.Owner.Cluster != "" && said.Owner.PodUID != "" && n.host(said.ID) == i.host
}

// version is a digest of records without their TTL.
func version(sets ...[]dns.RR) string {
	var text strings.Builder
	for _, rr := range general(slices.Concat(sets...)) {
		rr.Header().Ttl = 0
		text.WriteString(rr.String() + "\n")
	}
	return registry.Digest([]byte(text.String()))
}

// general copies records, because the DNS library modifies those that it is given.
func general[T dns.RR](set []T) []dns.RR {
	return list.Map(set, func(rr T) dns.RR { return dns.Copy(rr) })
}

// wanted returns the records of an entry. Errors are permanent.
func (r *Registry) wanted(n names, e registry.Entry) (srv *dns.SRV, others []dns.RR, err error) {
	address, err := netip.ParseAddr(e.Address)
	if err != nil || address.String() != e.Address || address.Zone() != "" || address.Is4In6() {
		return nil, nil, registry.Permanent(fmt.Errorf("address %q cannot be in a DNS record: write it in its shortest form", e.Address))
	}
	if e.Weight > maxWeight {
		return nil, nil, registry.Permanent(fmt.Errorf("weight %d is above %d, the limit of an SRV record: set a smaller one", e.Weight, maxWeight))
	}
	text := encode.JSON(stored{ID: e.ID, Owner: e.Owner, Metadata: e.Metadata})
	if len(text) > maxData {
		return nil, nil, registry.Permanent(fmt.Errorf("instance.metadata is too long for a TXT record: remove some of its %d bytes, %d fit",
			len(text), maxData))
	}
	host := n.host(e.ID)
	header := func(name string, kind uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: r.ttl}
	}
	srv = &dns.SRV{Hdr: header(n.srv, dns.TypeSRV), Weight: uint16(e.Weight), Port: uint16(e.Port), Target: host}
	others = []dns.RR{&dns.TXT{Hdr: header(host, dns.TypeTXT), Txt: escape(text)}}
	if address.Is4() {
		return srv, append(others, &dns.A{Hdr: header(host, dns.TypeA), A: address.AsSlice()}), nil
	}
	return srv, append(others, &dns.AAAA{Hdr: header(host, dns.TypeAAAA), AAAA: address.AsSlice()}), nil
}

// escape cuts data into the strings of a TXT record in the DNS library's form, in which
// a backslash begins an escape.
func escape(data []byte) (parts []string) {
	for part := range slices.Chunk(data, maxText) {
		parts = append(parts, strings.ReplaceAll(string(part), `\`, `\\`))
	}
	return parts
}

// unescape reverses escape: on the wire nothing is escaped, and each string follows its length.
func unescape(parts []string) (data []byte) {
	wire := new(dns.RFC3597) // Its data is in hexadecimal.
	if err := wire.ToRFC3597(&dns.TXT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: parts}); err != nil {
		return nil
	}
	rest, _ := hex.DecodeString(wire.Rdata)
	for len(rest) > 0 {
		next := 1 + int(rest[0])
		data, rest = append(data, rest[1:next]...), rest[next:]
	}
	return data
}
