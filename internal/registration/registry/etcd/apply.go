// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// maxTxnOps is etcd's default limit of comparisons, and of operations, in one
// transaction (--max-txn-ops).
const maxTxnOps = 128

// operation is a change on its way to etcd.
type operation struct {
	change registry.Change
	key    string
	value  string
}

// Apply implements registry.Connector. A transaction is all or nothing. If a change is
// outdated, Apply reads the current entries and continues without that change.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	client, err := r.connected()
	if err != nil {
		return err
	}
	var errs []error
	for batch := range slices.Chunk(changes, maxTxnOps) {
		err := registry.Rounds(batch, func(changes []registry.Change) ([]registry.Change, []error, error) {
			return r.round(ctx, client, service, changes)
		})
		errs = append(errs, err)
		if _, failed := registry.ChangeErrors(err); failed != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// round sends one transaction, and returns the remaining changes if it was not applied.
func (r *Registry) round(
	ctx context.Context, client *clientv3.Client, service string, changes []registry.Change,
) (again []registry.Change, refused []error, err error) {
	var batch []operation
	var sent []registry.Change
	for _, change := range changes {
		op, err := r.operation(service, change)
		if err != nil {
			refused = append(refused, &registry.ChangeError{ID: change.Entry.ID, Err: err})
			continue
		}
		batch, sent = append(batch, op), append(sent, change)
	}
	if len(batch) == 0 {
		return nil, refused, nil
	}
	applied, current, err := commit(ctx, client, r.root(service), batch)
	if err != nil || applied {
		return nil, refused, err
	}
	no := registry.Decide(current, sent, func(change registry.Change) error {
		again = append(again, change)
		return nil
	})
	return again, append(refused, no...), nil
}

func (r *Registry) operation(service string, change registry.Change) (operation, error) {
	op := operation{change: change, key: r.root(service) + change.Entry.ID}
	if change.Op == registry.Remove {
		return op, nil
	}
	var err error
	op.value, err = encode(change.Entry)
	return op, err
}

// commit sends one transaction. If a comparison fails, it returns the current entries.
func commit(
	ctx context.Context, client *clientv3.Client, root string, batch []operation,
) (applied bool, current []registry.Entry, err error) {
	var compares []clientv3.Cmp
	var writes, reads []clientv3.Op
	for _, op := range batch {
		// A key that does not exist has the modification revision 0.
		revision, err := seen(op.change.Entry.Version)
		if err != nil {
			return false, nil, err
		}
		compares = append(compares, clientv3.Compare(clientv3.ModRevision(op.key), "=", revision))
		reads = append(reads, clientv3.OpGet(op.key))
		if op.change.Op == registry.Remove {
			writes = append(writes, clientv3.OpDelete(op.key))
		} else {
			writes = append(writes, clientv3.OpPut(op.key, op.value))
		}
	}
	answer, err := client.Txn(ctx).If(compares...).Then(writes...).Else(reads...).Commit()
	if err != nil || answer.Succeeded {
		return err == nil, nil, typed(err)
	}
	for _, read := range answer.Responses {
		for _, kv := range read.GetResponseRange().Kvs {
			current = append(current, decode(strings.TrimPrefix(string(kv.Key), root), kv))
		}
	}
	return false, current, nil
}

func seen(version string) (int64, error) {
	if version == "" {
		return 0, nil
	}
	revision, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return 0, registry.Permanent(fmt.Errorf("version %q is not one that List returned: %w", version, err))
	}
	return revision, nil
}
