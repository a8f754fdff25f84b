// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/registry"
)

// Service is what the instances are registered as.
type Service struct {
	Connector registry.Connector
	Name      string
	// Propagation is how long callers may take to hear of a change.
	Propagation time.Duration
	// Metadata is what every entry has.
	Metadata map[string]string
}

// Roll replaces each of three instances under traffic, as a rollout does: it is
// taken out of the registry, the propagation time goes by, it ends, another one
// joins. No request may be lost. Then an instance ends that is still listed:
// requests must be lost, or the traffic would prove nothing.
//
// consumer is called when three instances are listed; it returns what a caller
// sees at the moment of each request.
func Roll(t *testing.T, s Service, consumer func(t *testing.T) func() []string) {
	t.Helper()
	instances := []*Backend{}
	for n := range 3 {
		b := NewBackend(t, fmt.Sprintf("first-%d", n))
		s.Change(t, registry.Put, b)
		instances = append(instances, b)
	}
	addresses := consumer(t)
	eventually(t, "three instances", func() bool { return len(addresses()) == 3 })
	load, stop := Start(t, addresses)
	for n, old := range instances {
		eventually(t, "requests to "+old.Entry.ID, func() bool { return old.Hits.Load() > 0 })
		next := NewBackend(t, fmt.Sprintf("second-%d", n))
		s.Change(t, registry.Put, next)
		eventually(t, "requests to "+next.Entry.ID, func() bool { return next.Hits.Load() > 0 })
		s.Change(t, registry.Remove, old)
		// This is the time that is under test, not a wait for something.
		<-time.After(s.Propagation)
		before := old.Hits.Load()
		old.Close()
		if before != old.Hits.Load() {
			t.Errorf("%s was asked after the propagation time", old.Entry.ID)
		}
		instances[n] = next
	}
	if lost := load.Lost.Load(); lost > 0 {
		t.Errorf("%d of %d requests were lost, the first by: %v", lost, load.Sent.Load(), load.FirstLoss())
	}
	t.Logf("%d requests while each of three instances was replaced, %d lost", load.Sent.Load(), load.Lost.Load())
	instances[0].Close()
	eventually(t, "a lost request", func() bool { return load.Lost.Load() > 0 })
	stop()
}

// Change makes one change, based on what is listed, and reads it back.
func (s Service) Change(t *testing.T, op registry.Op, b *Backend) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	entry := b.Entry
	entry.Metadata = s.Metadata
	same := func(e registry.Entry) bool { return e.ID == entry.ID }
	listed, err := s.Connector.List(ctx, s.Name)
	if err != nil {
		t.Fatal(err)
	}
	if at := slices.IndexFunc(listed, same); at >= 0 {
		entry.Version = listed[at].Version
	}
	if err := s.Connector.Apply(ctx, s.Name, []registry.Change{{Op: op, Entry: entry}}); err != nil {
		t.Fatal(err)
	}
	if listed, err = s.Connector.List(ctx, s.Name); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(listed, same) != (op == registry.Put) {
		t.Fatalf("after %s %s the registry lists %+v", op, entry.ID, listed)
	}
}

func eventually(t *testing.T, what string, true func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !true(); <-time.After(poll) {
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}
