// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
)

const (
	// listTimeout bounds one listing, which waits for as long as etcd is away.
	listTimeout = 5 * time.Second
	// listPause is how long to wait after a failed listing or a broken watch.
	listPause = 200 * time.Millisecond
)

// Source reports what a registry lists: everything once, then the changes. It returns
// when ctx ends or when it must start over.
type Source interface {
	Follow(ctx context.Context, sink Sink) error
}

// Sink receives what a Source reports. Its methods are called one at a time.
type Sink interface {
	// Replace makes entries the whole list.
	Replace(entries []Entry)
	// Update puts and removes entries at once: callers never see part of one registry
	// transaction. A key is in at most one of the two.
	Update(put []Entry, removed []string)
}

// Etcd is a service in etcd in the layout of
// go.etcd.io/etcd/client/v3/naming/endpoints: keys below <prefix>/<service>/.
type Etcd struct {
	Client  *clientv3.Client
	Prefix  string
	Service string
}

// Follow implements Source. The etcd client reconnects by itself after an outage and
// resumes the watch; Follow returns an error if etcd has compacted the history or
// cannot be listed.
func (e Etcd) Follow(ctx context.Context, sink Sink) error {
	prefix := strings.Trim(e.Prefix, "/") + "/" + e.Service + "/"
	listCtx, cancel := context.WithTimeout(ctx, listTimeout)
	listed, err := e.Client.Get(listCtx, prefix, clientv3.WithPrefix())
	cancel()
	if err != nil {
		return fmt.Errorf("list etcd keys below %s: %w", prefix, err)
	}
	entries := make([]Entry, 0, len(listed.Kvs))
	for _, kv := range listed.Kvs {
		entry, err := decode(prefix, kv.Key, kv.Value)
		if err != nil {
			return err
		}
		entries = append(entries, entry)
	}
	sink.Replace(entries)
	// The channel is closed only with the context: without a separate one, the watch of
	// an abandoned Follow would live on.
	watchCtx, stop := context.WithCancel(ctx)
	defer stop()
	for response := range e.Client.Watch(watchCtx, prefix, clientv3.WithPrefix(), clientv3.WithRev(listed.Header.Revision+1)) {
		if err := apply(prefix, response, sink); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func apply(prefix string, response clientv3.WatchResponse, sink Sink) error {
	if err := response.Err(); err != nil {
		return fmt.Errorf("watch etcd keys below %s: %w", prefix, err)
	}
	// The last event of a key counts: a response may span several revisions.
	latest := map[string]*clientv3.Event{}
	for _, event := range response.Events {
		latest[string(event.Kv.Key)] = event
	}
	var put []Entry
	var removed []string
	for _, key := range slices.Sorted(maps.Keys(latest)) {
		event := latest[key]
		if event.Type == clientv3.EventTypeDelete {
			removed = append(removed, strings.TrimPrefix(key, prefix))
			continue
		}
		entry, err := decode(prefix, event.Kv.Key, event.Kv.Value)
		if err != nil {
			return err
		}
		put = append(put, entry)
	}
	sink.Update(put, removed)
	return nil
}

// decode decodes one entry. It is stored as an endpoint, whose other fields do not
// matter to a caller that only needs an address.
func decode(prefix string, key, value []byte) (Entry, error) {
	var endpoint endpoints.Endpoint
	if err := json.Unmarshal(value, &endpoint); err != nil {
		return Entry{}, fmt.Errorf("etcd key %s: its value is no endpoint: %w", key, err)
	}
	if endpoint.Addr == "" {
		return Entry{}, fmt.Errorf("etcd key %s: its value has no Addr", key)
	}
	return Entry{Key: strings.TrimPrefix(string(key), prefix), Addr: endpoint.Addr}, nil
}

// follow keeps a sink up to date until ctx ends. An error leaves the sink with its
// latest list, as for callers during an outage.
func follow(ctx context.Context, source Source, sink Sink, failed func(error)) {
	for ctx.Err() == nil {
		err := source.Follow(ctx, sink)
		if ctx.Err() != nil || errors.Is(err, context.Canceled) {
			return
		}
		failed(err)
		select {
		case <-ctx.Done():
		case <-time.After(listPause):
		}
	}
}
