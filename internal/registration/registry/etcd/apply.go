// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// maxTxnOps is etcd's default limit of comparisons, and of operations, in one
// transaction (--max-txn-ops).
const maxTxnOps = 128

// Apply implements registry.Connector. A transaction is all or nothing. If a change is
// outdated, Apply reads the current entries and continues without that change.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	client, err := r.connected()
	if err != nil {
		return err
	}
	var errs []error
	for batch := range slices.Chunk(changes, maxTxnOps/r.layout.ops()) {
		err := registry.Rounds(batch, func(changes []registry.Change) ([]registry.Change, error) {
			return r.round(ctx, client, service, changes)
		})
		errs = append(errs, err)
		if _, failed := registry.ChangeErrors(err); failed != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// round sends one transaction. If it was not applied, because an entry is not as it was
// listed, round returns the changes that remain.
func (r *Registry) round(ctx context.Context, client *clientv3.Client, service string, changes []registry.Change) (again []registry.Change, err error) {
	var refused []error
	var sent []registry.Change
	var compares []clientv3.Cmp
	var writes, reads []clientv3.Op
	for _, change := range changes {
		made, unchanged, err := r.operation(service, change)
		if err != nil {
			refused = append(refused, change.Refused(err))
			continue
		}
		sent, compares, writes = append(sent, change), append(compares, unchanged...), append(writes, made...)
		from, end := r.keys(service, change.Entry.ID)
		reads = append(reads, clientv3.OpGet(from, clientv3.WithRange(end)))
	}
	if len(sent) == 0 {
		return nil, errors.Join(refused...)
	}
	answer, err := client.Txn(ctx).If(compares...).Then(writes...).Else(reads...).Commit()
	if err != nil || answer.Succeeded {
		return nil, errors.Join(append(refused, typed(client.Endpoints(), err))...)
	}
	var current []registry.Entry
	for _, read := range answer.Responses {
		for _, kv := range read.GetResponseRange().Kvs {
			current = added(current, decode(r.layout, strings.TrimPrefix(string(kv.Key), r.root(service)), kv))
		}
	}
	again, err = registry.Decide(current, registry.Itself, sent, func(change registry.Change, _ *registry.Entry) (registry.Change, error) {
		return change, nil
	})
	return again, errors.Join(append(refused, err)...)
}

// operation returns what makes a change, and comparisons with what was listed.
func (r *Registry) operation(
	service string, change registry.Change,
) (writes []clientv3.Op, unchanged []clientv3.Cmp, err error) {
	oldest, newest, err := revisions(change.Entry.Version)
	if err != nil {
		return nil, nil, registry.Permanent(fmt.Errorf(
			"version %q is not one that List returned: %w", change.Entry.Version, err))
	}
	from, end := r.keys(service, change.Entry.ID)
	unchanged = between(from, end, oldest, newest)
	if change.Op == registry.Remove {
		return []clientv3.Op{clientv3.OpDelete(from, clientv3.WithRange(end))}, unchanged, nil
	}
	name, value, err := r.layout.encode(service, change.Entry)
	if err != nil {
		return nil, nil, err
	}
	key := r.root(service) + name
	writes = []clientv3.Op{clientv3.OpPut(key, value)}
	if end != "" { // The entry's other keys go after that: callers learn of it in this order.
		writes = append(writes,
			clientv3.OpDelete(from, clientv3.WithRange(key)), clientv3.OpDelete(key+"\x00", clientv3.WithRange(end)))
	}
	return writes, unchanged, nil
}

// keys returns the key of an entry, or the range from one to another, exclusive, if its key can have several names.
func (r *Registry) keys(service, id string) (from, end string) {
	from = r.root(service) + id
	if after := r.layout.after(id); after != "" {
		end = r.root(service) + after
	}
	return from, end
}

// between compares the modification revisions of an entry's keys with those that were listed, 0 for none.
func between(from, end string, oldest, newest int64) []clientv3.Cmp {
	revision := clientv3.ModRevision(from)
	if oldest == newest {
		return []clientv3.Cmp{clientv3.Compare(revision, "=", newest).WithRange(end)}
	}
	return []clientv3.Cmp{
		clientv3.Compare(revision, ">", oldest-1).WithRange(end), clientv3.Compare(revision, "<", newest+1).WithRange(end),
	}
}

// decode returns the entry of a key with that name.
func decode(l layout, name string, kv *mvccpb.KeyValue) registry.Entry {
	entry := l.decode(name, kv.Value)
	entry.Version = version(kv)
	return entry
}

// added adds an entry of the next key. If somebody has copied an entry under another name of its key, both are one.
func added(entries []registry.Entry, entry registry.Entry) []registry.Entry {
	last := len(entries) - 1
	if last < 0 || entries[last].ID != entry.ID {
		return append(entries, entry)
	}
	oldest, newest, _ := revisions(entries[last].Version) // They are our own.
	revision, _, _ := revisions(entry.Version)
	entries[last].Version = fmt.Sprintf("%d-%d", min(oldest, revision), max(newest, revision))
	return entries
}

// version returns what a write compares.
func version(kv *mvccpb.KeyValue) string { return strconv.FormatInt(kv.ModRevision, 10) }

// revisions are those of a version: 0 for no entry, and two for one of several keys.
func revisions(version string) (oldest, newest int64, err error) {
	if version == "" {
		return 0, 0, nil
	}
	first, last, several := strings.Cut(version, "-")
	if oldest, err = strconv.ParseInt(first, 10, 64); err != nil || !several {
		return oldest, oldest, err
	}
	newest, err = strconv.ParseInt(last, 10, 64)
	return oldest, newest, err
}
