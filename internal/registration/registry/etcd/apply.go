// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/usher-dev/usher/internal/encode"
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
	for batch := range slices.Chunk(changes, maxTxnOps) {
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
		key := r.root(service) + change.Entry.ID
		write, unchanged, err := operation(key, change)
		if err != nil {
			refused = append(refused, change.Refused(err))
			continue
		}
		sent, compares = append(sent, change), append(compares, unchanged)
		writes, reads = append(writes, write), append(reads, clientv3.OpGet(key))
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
			current = append(current, decode(strings.TrimPrefix(string(kv.Key), r.root(service)), kv))
		}
	}
	again, err = registry.Decide(current, registry.Itself, sent, func(change registry.Change, _ *registry.Entry) (registry.Change, error) {
		return change, nil
	})
	return again, errors.Join(append(refused, err)...)
}

// operation returns what makes a change, and the comparison with what was listed.
func operation(key string, change registry.Change) (write clientv3.Op, unchanged clientv3.Cmp, err error) {
	revision := int64(0) // As that of a key that does not exist.
	if version := change.Entry.Version; version != "" {
		if revision, err = strconv.ParseInt(version, 10, 64); err != nil {
			return write, unchanged, registry.Permanent(fmt.Errorf("version %q is not one that List returned: %w", version, err))
		}
	}
	write = clientv3.OpDelete(key)
	if change.Op == registry.Put {
		value, err := encoded(change.Entry)
		if err != nil {
			return write, unchanged, err
		}
		write = clientv3.OpPut(key, value)
	}
	return write, clientv3.Compare(clientv3.ModRevision(key), "=", revision), nil
}

// Metadata keys that Usher uses itself. All others are the user's.
const metaWeight, metaOwner = "weight", "usher"

// value is an endpoint as the etcd naming package stores it.
type value struct {
	Op       int
	Addr     string
	Metadata map[string]json.RawMessage
}

func encoded(entry registry.Entry) (string, error) {
	metadata := map[string]json.RawMessage{metaWeight: encode.JSON(entry.Weight), metaOwner: encode.JSON(entry.Owner)}
	for _, key := range slices.Sorted(maps.Keys(entry.Metadata)) {
		if key == metaWeight || key == metaOwner {
			return "", registry.Permanent(fmt.Errorf(
				"instance.metadata has the key %q, which Usher writes itself: use another", key))
		}
		metadata[key] = encode.JSON(entry.Metadata[key])
	}
	return string(encode.JSON(value{Addr: entry.HostPort(), Metadata: metadata})), nil
}

// decode never fails: a value that Usher did not write is an entry without an owner, so
// that Usher never changes it.
func decode(id string, kv *mvccpb.KeyValue) registry.Entry {
	entry := registry.Entry{ID: id, Version: version(kv)}
	var stored value
	if err := json.Unmarshal(kv.Value, &stored); err != nil {
		entry.Address = string(kv.Value)
		return entry
	}
	entry.SetHostPort(stored.Addr)
	for key, raw := range stored.Metadata {
		// What Usher would not write counts as absent.
		text, weight, owner := "", int32(0), registry.Owner{}
		switch {
		case key == metaWeight && json.Unmarshal(raw, &weight) == nil:
			entry.Weight = weight
		case key == metaOwner && json.Unmarshal(raw, &owner) == nil:
			entry.Owner = owner
		case key != metaWeight && key != metaOwner && json.Unmarshal(raw, &text) == nil:
			entry.SetMetadata(key, text)
		}
	}
	return entry
}

// version returns what a write compares.
func version(kv *mvccpb.KeyValue) string { return strconv.FormatInt(kv.ModRevision, 10) }
