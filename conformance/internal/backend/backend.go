// SPDX-License-Identifier: Apache-2.0

// Package backend runs instances of a service, and callers that count.
package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registry"
)

// Instance is an HTTP server that answers with its name.
type Instance struct {
	// Entry is what its registry is to list.
	Entry registry.Entry

	server *http.Server
	served atomic.Int64
}

// Start starts an instance on a free port. A request with ?slow=DURATION is
// answered after that time.
func Start(t testing.TB, name string) *Instance {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	i := &Instance{Entry: registry.Entry{
		ID: "demo." + name + ".00000000", Address: "127.0.0.1", Weight: 10,
		Port: int32(listener.Addr().(*net.TCPAddr).Port),
		Owner: registry.Owner{
			Cluster: "here", Namespace: "demo", Registration: "web", Pod: name, PodUID: "00000000-" + name,
		},
	}}
	i.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if slow, err := time.ParseDuration(r.URL.Query().Get("slow")); err == nil {
				select {
				case <-time.After(slow):
				case <-r.Context().Done():
				}
			}
			i.served.Add(1)
			_, _ = fmt.Fprint(w, name) // A caller that is gone counts its own loss.
		})}
	go func() { _ = i.server.Serve(listener) }()
	t.Cleanup(i.Kill)
	return i
}

// Kill ends the instance at once: what is in flight is lost.
func (i *Instance) Kill() { _ = i.server.Close() }

// Served is how many requests it has answered.
func (i *Instance) Served() int64 { return i.served.Load() }

// Callers send requests until they are told to stop.
type Callers struct {
	stopped atomic.Bool
	group   sync.WaitGroup
	answers atomic.Int64

	mu     sync.Mutex
	losses []string
}

// Call starts n callers. Each request goes through client to the address that
// where returns at its time.
func Call(t testing.TB, n int, client *http.Client, where func(ctx context.Context) (string, error)) *Callers {
	t.Helper()
	c := &Callers{}
	for range n {
		c.group.Go(func() {
			for !c.stopped.Load() {
				c.count(One(client, where))
			}
		})
	}
	t.Cleanup(func() { c.Stop() })
	return c
}

// One sends a request and reports what is wrong with the answer. It is not cut
// short by the end of a test.
func One(client *http.Client, where func(ctx context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	address, err := where(ctx)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // It was read.
	if _, err := io.ReadAll(response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

func (c *Callers) count(err error) {
	if err == nil {
		c.answers.Add(1)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.losses = append(c.losses, err.Error())
}

// Answers is how many requests succeeded so far.
func (c *Callers) Answers() int64 { return c.answers.Load() }

// Stop ends the callers and returns what was lost.
func (c *Callers) Stop() []string {
	c.stopped.Store(true)
	c.group.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.losses
}

// Change applies changes computed from a list, as a pass does, and returns what
// is listed then.
func Change(t testing.TB, c registry.Connector, service string, op registry.Op, entries ...registry.Entry) []registry.Entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	listed, err := c.List(ctx, service)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, e := range listed {
		versions[e.ID] = e.Version
	}
	var changes []registry.Change
	for _, e := range entries {
		e.Version = versions[e.ID]
		changes = append(changes, registry.Change{Op: op, Entry: e})
	}
	if err := c.Apply(ctx, service, changes); err != nil {
		t.Fatal(err)
	}
	listed, err = c.List(ctx, service)
	if err != nil {
		t.Fatal(err)
	}
	return listed
}

// Find returns the entry with the ID, nil if it is not listed.
func Find(entries []registry.Entry, id string) *registry.Entry {
	for i := range entries {
		if entries[i].ID == id {
			return &entries[i]
		}
	}
	return nil
}
