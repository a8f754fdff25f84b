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
// resends the remaining changes once more.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	if err := registry.Validate(service, changes); err != nil {
		return err
	}
	n, err := r.names(service)
	if err != nil {
		return err
	}
	return registry.Rounds(changes, func(changes []registry.Change) ([]registry.Change, []error, error) {
		return r.round(ctx, n, changes)
	})
}

// round reads, checks and sends changes. It returns those to retry.
func (r *Registry) round(ctx context.Context, n names, changes []registry.Change) (again []registry.Change, refused []error, err error) {
	pending, refused := r.operations(n, changes)
	if len(pending) == 0 {
		return nil, refused, nil
	}
	srvs, err := r.srvs(ctx, n)
	if err != nil {
		return nil, refused, err
	}
	hosts := make([]string, 0, len(pending))
	for _, op := range pending {
		hosts = append(hosts, op.host)
	}
	instances, err := r.read(ctx, n, hosts, srvs)
	if err != nil {
		return nil, refused, err
	}
	size := 0
	for _, srv := range srvs {
		size += sizeOf(srv)
	}
	var ready []*operation
	for at, op := range pending {
		op.have = instances[at]
		needed, err := op.check(&size)
		if err != nil {
			refused = append(refused, &registry.ChangeError{ID: op.change.Entry.ID, Err: err})
		} else if needed {
			ready = append(ready, op)
		}
	}
	if len(ready) > 0 {
		again, err = r.update(ctx, ready)
	}
	return again, refused, err
}

// operations converts the changes to operations for the server.
func (r *Registry) operations(n names, changes []registry.Change) (pending []*operation, refused []error) {
	for _, change := range changes {
		var err error
		op := &operation{change: change, host: n.host(change.Entry.ID)}
		if change.Op == registry.Put {
			op.srv, op.others, err = r.wanted(n, change.Entry)
		}
		if err != nil {
			refused = append(refused, &registry.ChangeError{ID: change.Entry.ID, Err: err})
			continue
		}
		pending = append(pending, op)
	}
	return pending, refused
}

// sizeOf returns the size of an SRV record in an answer, in bytes. The name is written
// once for all records; targets are not compressed.
func sizeOf(srv *dns.SRV) int { return 2 + 10 + 6 + len(srv.Target) + 1 }

// check compares the change with what was read. size is the size of the SRV records so
// far.
func (op *operation) check(size *int) (needed bool, err error) {
	var current *registry.Entry
	if op.have.listed() {
		current = &op.have.entry
	}
	needed, err = op.change.Check(current)
	if err != nil || !needed || op.change.Op == registry.Remove {
		return needed, err
	}
	lost := op.have.lost && op.have.entry.Owner.Cluster != op.change.Entry.Owner.Cluster
	if current == nil && (op.have.foreign || lost) {
		return false, fmt.Errorf("%s has records of another writer: %w", op.host, registry.ErrForeign)
	}
	if current == nil {
		if *size+sizeOf(op.srv) > maxSet {
			return false, registry.Permanent(errors.New("the SRV records of the service would not fit into one answer: " +
				"spread the instances over several services"))
		}
		*size += sizeOf(op.srv)
	}
	return true, nil
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
	sets := []struct {
		kind uint16
		have []dns.RR
	}{
		{dns.TypeTXT, general(op.have.txts)}, {dns.TypeA, general(op.have.a)}, {dns.TypeAAAA, general(op.have.aaaa)},
	}
	for _, set := range sets {
		name := []dns.RR{&dns.ANY{Hdr: dns.RR_Header{Name: op.host, Rrtype: set.kind}}}
		if len(set.have) == 0 {
			m.RRsetNotUsed(name)
			continue
		}
		for _, rr := range set.have {
			rr.Header().Ttl = 0
		}
		m.Used(set.have)
		m.RemoveRRset(name)
	}
	m.Remove(general(op.have.srvs))
	if op.change.Op == registry.Put {
		m.Insert(append([]dns.RR{op.srv}, op.others...))
	}
}
