// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
)

const (
	// leaseSeconds is how long etcd keeps the entry of a service that has vanished, in seconds.
	leaseSeconds = 10
	// etcdTime bounds a change of the entry, and is the time between attempts to get a lease.
	etcdTime = time.Second
)

// errNoLease means that etcd has given no lease yet.
var errNoLease = errors.New("there is no lease of etcd's yet")

// entry is the service's own entry in etcd, where gRPC's clients find it.
type entry struct {
	client *clientv3.Client
	// known are the service's entries; key and address are those of this one.
	known        endpoints.Manager
	key, address string

	changing sync.Mutex
	// lease keeps the entry; nil until etcd has given one. out means that somebody has asked the service to leave.
	lease *concurrency.Session
	out   bool
}

// register puts an address into the service's entries, and keeps it there until end is called, which removes it.
// Without an etcd it does nothing.
func register(etcd, service, name, address string) (e *entry, end func(), err error) {
	if etcd == "" {
		return nil, func() {}, nil
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}})
	if err != nil {
		return nil, nil, fmt.Errorf("$ETCD: %w", err)
	}
	known, err := endpoints.NewManager(client, service)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("$SERVICE: %w", err), client.Close())
	}
	e = &entry{client: client, known: known, key: path.Join(service, name), address: address}
	ctx, stop := context.WithCancel(context.Background())
	var keeping sync.WaitGroup
	keeping.Go(func() { e.keep(ctx) })
	return e, func() { stop(); keeping.Wait() }, nil
}

// keep has the entry listed under a lease, and under another one when that is lost, until ctx ends. Then it gives the
// lease back, with the entry.
func (e *entry) keep(ctx context.Context) {
	for ctx.Err() == nil {
		lease, err := concurrency.NewSession(e.client, concurrency.WithTTL(leaseSeconds), concurrency.WithContext(ctx))
		if err == nil {
			e.changing.Lock()
			e.lease = lease
			err = e.show(ctx)
			e.changing.Unlock()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "web: register in etcd:", err)
			lost(ctx, time.After(etcdTime))
			continue
		}
		lost(ctx, lease.Done())
	}
	e.changing.Lock()
	defer e.changing.Unlock()
	if e.lease != nil {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcdTime)
		defer cancel()
		_, _ = e.client.Revoke(bounded, e.lease.Lease()) // else the lease runs out
	}
	_ = e.client.Close() // nobody uses it any more
}

// lost waits for a channel, or for the end of ctx.
func lost[T any](ctx context.Context, channel <-chan T) {
	select {
	case <-channel:
	case <-ctx.Done():
	}
}

// show has etcd list the entry, or not if the service was asked to leave. The caller holds changing.
func (e *entry) show(ctx context.Context) error {
	if e.lease == nil {
		return errNoLease
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTime)
	defer cancel()
	if e.out {
		return e.known.DeleteEndpoint(ctx, e.key)
	}
	return e.known.AddEndpoint(ctx, e.key, endpoints.Endpoint{Addr: e.address}, clientv3.WithLease(e.lease.Lease()))
}

// ask answers a request to leave or to return, once etcd has the change.
func (e *entry) ask(out bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		e.changing.Lock()
		defer e.changing.Unlock()
		e.out = out
		if err := e.show(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}
}
