// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/internal/registry"
)

const (
	// maxTxnOps is etcd's default limit of comparisons, and of operations, in one
	// transaction (--max-txn-ops).
	maxTxnOps = 128
	// maxRounds bounds how often one batch is sent anew without the changes that
	// were refused. Each round takes at least one out.
	maxRounds = 4
)

// operation is a change on its way to etcd.
type operation struct {
	change registry.Change
	key    string
	value  string
}

// Apply implements registry.Connector. A transaction is all or nothing, so one
// that meets an outdated change reads what is there, and goes on without it.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	if err := registry.Validate(service, changes); err != nil {
		return err
	}
	client, err := r.connected()
	if err != nil {
		return err
	}
	var refused []error
	pending := make([]operation, 0, len(changes))
	for _, change := range changes {
		op, err := r.operation(service, change)
		if err != nil {
			refused = append(refused, &registry.ChangeError{ID: change.Entry.ID, Err: err})
			continue
		}
		pending = append(pending, op)
	}
	for len(pending) > 0 {
		batch := pending[:min(len(pending), maxTxnOps)]
		pending = pending[len(batch):]
		conflicts, err := commitAll(ctx, client, r.root(service), batch)
		refused = append(refused, conflicts...)
		if err != nil {
			return errors.Join(append(refused, err)...)
		}
	}
	return errors.Join(refused...)
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

// commitAll sends one batch until what is left of it has been applied.
func commitAll(ctx context.Context, client *clientv3.Client, root string, batch []operation) ([]error, error) {
	var refused []error
	for range maxRounds {
		current, err := commit(ctx, client, root, batch)
		if err != nil || current == nil {
			return refused, err
		}
		var next []operation
		for _, op := range batch {
			needed, err := op.change.Check(current[op.change.Entry.ID])
			if err != nil {
				refused = append(refused, &registry.ChangeError{ID: op.change.Entry.ID, Err: err})
			} else if needed {
				next = append(next, op)
			}
		}
		if len(next) == 0 {
			return refused, nil
		}
		batch = next
	}
	for _, op := range batch {
		err := fmt.Errorf("others write to it all the time: %w", registry.ErrConflict)
		refused = append(refused, &registry.ChangeError{ID: op.change.Entry.ID, Err: err})
	}
	return refused, nil
}

// commit sends one transaction. If a comparison fails it returns what is there,
// by entry ID; nil if all was applied.
func commit(
	ctx context.Context, client *clientv3.Client, root string, batch []operation,
) (map[string]*registry.Entry, error) {
	var compares []clientv3.Cmp
	var writes, reads []clientv3.Op
	for _, op := range batch {
		// A key that does not exist has the modification revision 0.
		revision, err := seen(op.change.Entry.Version)
		if err != nil {
			return nil, err
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
	if err != nil {
		return nil, typed(err)
	}
	if answer.Succeeded {
		return nil, nil
	}
	current := map[string]*registry.Entry{}
	for _, read := range answer.Responses {
		for _, kv := range read.GetResponseRange().Kvs {
			entry := decode(strings.TrimPrefix(string(kv.Key), root), kv)
			current[entry.ID] = &entry
		}
	}
	return current, nil
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
