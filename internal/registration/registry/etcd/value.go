// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Metadata keys that Usher uses itself. All others are the user's.
const (
	metaWeight = "weight"
	metaOwner  = "usher"
)

// value is an endpoint as the etcd naming package stores it.
type value struct {
	Op       int
	Addr     string
	Metadata map[string]json.RawMessage
}

func encode(entry registry.Entry) (string, error) {
	metadata := make(map[string]any, len(entry.Metadata)+2)
	for _, key := range slices.Sorted(maps.Keys(entry.Metadata)) {
		if key == metaWeight || key == metaOwner {
			return "", registry.Permanent(fmt.Errorf(
				"instance.metadata has the key %q, which Usher writes itself: use another", key))
		}
		metadata[key] = entry.Metadata[key]
	}
	metadata[metaWeight] = entry.Weight
	metadata[metaOwner] = entry.Owner
	data, err := json.Marshal(struct {
		Op       int
		Addr     string
		Metadata map[string]any
	}{Addr: entry.HostPort(), Metadata: metadata})
	if err != nil {
		return "", registry.Permanent(fmt.Errorf("encode: %w", err))
	}
	return string(data), nil
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
