// SPDX-License-Identifier: Apache-2.0

// Package try is what the tests of connectors share: an instance, its way through a
// connector, and the time to wait for it.
package try

import (
	"context"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// patience bounds each wait: Java servers react slowly when many tests share a
	// processor.
	patience = 2 * time.Minute
	// poll is how often a condition is checked.
	poll = 50 * time.Millisecond
	// service is the service of all instances.
	service = "web"
)

// Bounded ends with the test, or when a server takes too long.
func Bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Eventually waits until a condition holds.
func Eventually(t *testing.T, what string, true func() bool) {
	t.Helper()
	for ctx := Bounded(t); !true(); {
		select {
		case <-ctx.Done():
			t.Fatalf("waited %s for %s", patience, what)
		case <-time.After(poll):
		}
	}
}

// Instance is the entry of a Pod.
func Instance(id string) registry.Entry {
	return registry.Entry{
		ID: id, Address: "10.0.0.1", Port: 8080, Weight: 10, Metadata: map[string]string{"zone": "a"},
		Owner: registry.Owner{Cluster: "here", Namespace: "demo", Registration: "web", Pod: id, PodUID: "uid-" + id},
	}
}

// Apply makes one change of the service web.
func Apply(t *testing.T, r registry.Connector, op registry.Op, e registry.Entry) {
	t.Helper()
	if err := r.Apply(Bounded(t), service, []registry.Change{{Op: op, Entry: e}}); err != nil {
		t.Fatal(err)
	}
}

// List lists the service web.
func List(t *testing.T, r registry.Connector) []registry.Entry {
	t.Helper()
	entries, err := r.List(Bounded(t), service)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}
