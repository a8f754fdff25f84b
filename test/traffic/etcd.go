// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
)

// listTimeout bounds one listing, which waits for as long as etcd is away.
const listTimeout = 5 * time.Second

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
func (e Etcd) Follow(ctx context.Context, tell func(addresses []string)) error {
	prefix := strings.Trim(e.Prefix, "/") + "/" + e.Service + "/"
	listCtx, cancel := context.WithTimeout(ctx, listTimeout)
	listed, err := e.Client.Get(listCtx, prefix, clientv3.WithPrefix())
	cancel()
	if err != nil {
		return fmt.Errorf("list etcd keys below %s: %w", prefix, err)
	}
	addresses := map[string]string{} // by key
	for _, kv := range listed.Kvs {
		if addresses[string(kv.Key)], err = decode(kv.Key, kv.Value); err != nil {
			return err
		}
	}
	tell(slices.Collect(maps.Values(addresses)))
	// The channel is closed only with the context: without a separate one, the watch of
	// an abandoned Follow would live on.
	watchCtx, stop := context.WithCancel(ctx)
	defer stop()
	for response := range e.Client.Watch(watchCtx, prefix, clientv3.WithPrefix(), clientv3.WithRev(listed.Header.Revision+1)) {
		if err := apply(addresses, response); err != nil {
			return fmt.Errorf("watch etcd keys below %s: %w", prefix, err)
		}
		tell(slices.Collect(maps.Values(addresses))) // Callers never see part of a transaction.
	}
	return ctx.Err()
}

func apply(addresses map[string]string, response clientv3.WatchResponse) (err error) {
	for _, event := range response.Events {
		key := string(event.Kv.Key)
		if event.Type == clientv3.EventTypeDelete {
			delete(addresses, key)
		} else if addresses[key], err = decode(event.Kv.Key, event.Kv.Value); err != nil {
			return err
		}
	}
	return response.Err()
}

// decode is the address of an entry. It is stored as an endpoint, whose other fields do
// not matter to a caller.
func decode(key, value []byte) (address string, err error) {
	var endpoint endpoints.Endpoint
	if err := json.Unmarshal(value, &endpoint); err != nil {
		return "", fmt.Errorf("etcd key %s: its value is no endpoint: %w", key, err)
	}
	if endpoint.Addr == "" {
		return "", fmt.Errorf("etcd key %s: its value has no Addr", key)
	}
	return endpoint.Addr, nil
}
