// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Instance is an HTTP server on loopback that answers with its name.
type Instance struct {
	// Entry is what its registry should list.
	Entry registry.Entry

	server *http.Server
	served atomic.Int64
}

// Start starts an instance on a free port, until Kill or the test's end. A
// request with ?slow=DURATION is answered after that time.
func Start(t *testing.T, name string) *Instance {
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
	i.server = &http.Server{ReadHeaderTimeout: requestTimeout, Handler: http.HandlerFunc(
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

// Kill ends the instance at once, like the end of a process: requests in flight are
// lost.
func (i *Instance) Kill() { _ = i.server.Close() }

// Served is how many requests it has answered.
func (i *Instance) Served() int64 { return i.served.Load() }

// Change applies changes computed from a list, as a pass does, and returns the
// resulting list.
func Change(t *testing.T, c registry.Connector, service string, op registry.Op, entries ...registry.Entry) []registry.Entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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
