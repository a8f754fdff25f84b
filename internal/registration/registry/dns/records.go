// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/usher-dev/usher/internal/registration/registry"
)

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
	// lost means that the records are ours but no SRV record points to them.
	lost bool
	// foreign means that another writer has records of that name.
	foreign bool
}

// listed reports whether callers find it.
func (i *instance) listed() bool { return len(i.srvs) > 0 }

func compareText(a, b dns.RR) int { return strings.Compare(a.String(), b.String()) }

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
	for _, i := range instances {
		entries = append(entries, i.entry)
	}
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
	i.entry = registry.Entry{ID: strings.TrimSuffix(i.host, "."+n.base), Address: strings.Join(i.addresses(), ",")}
	said, ours := i.stored(n)
	if ours {
		i.entry.ID, i.entry.Owner, i.entry.Metadata = said.ID, said.Owner, said.Metadata
	}
	i.foreign = !ours && len(slices.Concat(i.sets[:]...)) > 0
	i.lost = ours && !i.listed()
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

func (i *instance) addresses() []string {
	var all []string
	for _, rr := range slices.Concat(i.sets[1:]...) {
		switch record := rr.(type) {
		case *dns.A:
			all = append(all, record.A.String())
		case *dns.AAAA:
			all = append(all, record.AAAA.String())
		}
	}
	return all
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
	copies := make([]dns.RR, 0, len(set))
	for _, rr := range set {
		copies = append(copies, dns.Copy(rr))
	}
	return copies
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
	text, err := json.Marshal(stored{ID: e.ID, Owner: e.Owner, Metadata: e.Metadata})
	if err != nil {
		return nil, nil, registry.Permanent(fmt.Errorf("encode: %w", err))
	}
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
func escape(data []byte) []string {
	var parts []string
	for len(data) > 0 {
		part := data[:min(len(data), maxText)]
		data = data[len(part):]
		parts = append(parts, strings.ReplaceAll(string(part), `\`, `\\`))
	}
	return parts
}

// unescape reverses escape, with the escapes that the library writes: \" and \DDD.
func unescape(parts []string) []byte {
	var data []byte
	for _, part := range parts {
		for i := 0; i < len(part); i++ {
			c := part[i]
			switch {
			case c != '\\' || i+1 == len(part):
			case i+3 < len(part) && digits(part[i+1:i+4]):
				c = (part[i+1]-'0')*100 + (part[i+2]-'0')*10 + part[i+3] - '0'
				i += 3
			default:
				i++
				c = part[i]
			}
			data = append(data, c)
		}
	}
	return data
}

func digits(text string) bool {
	return strings.Trim(text, "0123456789") == ""
}
