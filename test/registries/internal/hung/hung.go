// SPDX-License-Identifier: Apache-2.0

// Package hung suspends a server while a connector uses it.
package hung

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/test/registries/internal/servers"
)

const (
	// limit is how long a call may take, slack how much later it may return.
	limit = time.Second
	slack = time.Second
	// recovery bounds the time until a resumed server is used.
	recovery = 30 * time.Second
)

// Test suspends the server's process: calls, including those for others, end in time
// with a transient error, and the next call works when it runs again.
func Test(t *testing.T, server *servers.Process, connector registry.Connector, change registry.Change) {
	t.Helper()
	if err := connector.Ping(bounded(t, recovery)); err != nil {
		t.Fatal(err)
	}
	if err := server.Hold(); err != nil {
		t.Fatal(err)
	}
	results := map[string]chan error{}
	began := time.Now()
	for name, call := range map[string]func(context.Context) error{
		"ping": connector.Ping,
		"list": func(ctx context.Context) error { _, err := connector.List(ctx, "web"); return err },
		"apply": func(ctx context.Context) error {
			return connector.Apply(ctx, "web", []registry.Change{change})
		},
	} {
		result := make(chan error, 1)
		results[name] = result
		go func() { result <- call(bounded(t, limit)) }()
	}
	for name, result := range results {
		if err := <-result; !errors.Is(err, registry.ErrTransient) {
			t.Errorf("%s of a server that hangs: %v, want a transient error", name, err)
		}
	}
	if took := time.Since(began); took > limit+slack {
		t.Errorf("calls that may take %s took %s", limit, took)
	}
	if err := server.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	end := bounded(t, recovery)
	for connector.Ping(bounded(t, limit)) != nil {
		if end.Err() != nil {
			t.Fatalf("the connector did not recover within %s", recovery)
		}
	}
	if _, err := connector.List(bounded(t, recovery), "web"); err != nil {
		t.Error(err)
	}
}

func bounded(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}
