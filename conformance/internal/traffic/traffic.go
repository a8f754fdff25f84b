// SPDX-License-Identifier: Apache-2.0

// Package traffic sends real requests to instances that join, drain and leave,
// as a caller that finds them in a registry, and counts those that are lost.
package traffic

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registry"
)

const (
	// callers send requests side by side, each one every pause.
	callers = 4
	pause   = 5 * time.Millisecond
	// requestTimeout is when a request counts as lost.
	requestTimeout = 5 * time.Second
	// patience bounds every wait for something that has to happen.
	patience = 30 * time.Second
	poll     = 10 * time.Millisecond
)

// Backend is an instance: an HTTP server on loopback.
type Backend struct {
	// Entry is what a registry is to list for it.
	Entry registry.Entry
	// Hits counts the requests that it answered.
	Hits   atomic.Int64
	server *http.Server
}

// NewBackend starts an instance with that id, until Close or the test's end.
func NewBackend(t *testing.T, id string) *Backend {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &Backend{Entry: registry.Entry{
		ID: id, Address: "127.0.0.1", Port: int32(listener.Addr().(*net.TCPAddr).Port), Weight: 10,
		Owner: registry.Owner{Cluster: "here", Namespace: "demo", Registration: "web", Pod: id, PodUID: "uid-" + id},
	}}
	b.server = &http.Server{
		ReadHeaderTimeout: requestTimeout,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			b.Hits.Add(1)
			w.WriteHeader(http.StatusNoContent)
		}),
	}
	go func() { _ = b.server.Serve(listener) }()
	t.Cleanup(b.Close)
	return b
}

// Close ends the instance as a process ends: at once.
func (b *Backend) Close() { _ = b.server.Close() }

// Load is traffic under way.
type Load struct {
	// Sent and Lost count requests. One that finds no instance is lost.
	Sent, Lost atomic.Int64

	mu    sync.Mutex
	first error
}

// FirstLoss says why the first request was lost, nil if none was.
func (l *Load) FirstLoss() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

// Start sends requests to what addresses returns, each a host and port, in turn,
// until the test's end or stop.
func Start(t *testing.T, addresses func() []string) (load *Load, stop func()) {
	t.Helper()
	load = &Load{}
	ctx, cancel := context.WithCancel(t.Context())
	client := &http.Client{Timeout: requestTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	var turn atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for ctx.Err() == nil {
				load.one(context.WithoutCancel(ctx), client, addresses(), int(turn.Add(1)))
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
		client.CloseIdleConnections()
	})
	t.Cleanup(stop)
	return load, stop
}

// one sends a request. Its time is its own: the end of the test loses none.
func (l *Load) one(ctx context.Context, client *http.Client, addresses []string, turn int) {
	l.Sent.Add(1)
	if err := request(ctx, client, addresses, turn); err != nil {
		l.Lost.Add(1)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.first == nil {
			l.first = err
		}
	}
}

func request(ctx context.Context, client *http.Client, addresses []string, turn int) error {
	if len(addresses) == 0 {
		return fmt.Errorf("the registry lists no instance")
	}
	url := "http://" + addresses[turn%len(addresses)] + "/"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	// On a connection of its own the client tries nothing twice, which would hide
	// a lost request.
	request.Close = true
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("%s answered %s", url, response.Status)
	}
	return nil
}
