// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"fmt"

	"github.com/miekg/dns"

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
	return registry.Rounds(changes, func(changes []registry.Change) ([]registry.Change, error) {
		return r.round(ctx, n, changes)
	})
}

// round reads, checks and sends changes. It returns those to retry.
func (r *Registry) round(ctx context.Context, n names, changes []registry.Change) (again []registry.Change, err error) {
	srvs, err := r.srvs(ctx, n)
	if err != nil {
		return nil, err
	}
	hosts := make([]string, 0, len(changes))
	for _, change := range changes {
		hosts = append(hosts, n.host(change.Entry.ID))
	}
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
	refused = registry.Decide(listed, registry.Itself, changes, func(change registry.Change, _ *registry.Entry) (err error) {
		op := &operation{change: change, host: n.host(change.Entry.ID), have: there[change.Entry.ID]}
		if change.Op == registry.Put {
			if op.srv, op.others, err = r.wanted(n, change.Entry); err == nil {
				err = op.fits(&size)
			}
		}
		if err == nil {
			ready = append(ready, op)
		}
		return err
	})
	return ready, refused
}

// sizeOf returns the size of an SRV record in an answer, in bytes. The name is written
// once for all records; targets are not compressed.
func sizeOf(srv *dns.SRV) int { return 2 + 10 + 6 + len(srv.Target) + 1 }

// fits refuses a new instance whose name is another writer's, or that does not fit. size
// is the size of the SRV records so far.
func (op *operation) fits(size *int) error {
	lost := op.have.lost && op.have.entry.Owner.Cluster != op.change.Entry.Owner.Cluster
	switch {
	case op.have.listed():
		return nil
	case op.have.foreign || lost:
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
			_, _, err := send(message)
			if errors.Is(err, errPrerequisite) {
				for _, op := range batch {
					again = append(again, op.change)
				}
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
