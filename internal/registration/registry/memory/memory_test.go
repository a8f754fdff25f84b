// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/memory"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

func TestConformance(t *testing.T) {
	registrytest.Run(t, func(*testing.T) registrytest.Subject {
		r := memory.New()
		return registrytest.Subject{
			Connector: r, HoldsBack: true,
			Seed: func(_ *testing.T, service, id string) {
				r.Seed(service, registry.Entry{ID: id, Address: "192.0.2.1", Port: 1})
			},
			Break: func(*testing.T) { r.Break(memory.Down) },
			Mend:  func(*testing.T) { r.Break(memory.None) },
		}
	})
}

func entry(id string) registry.Entry {
	return registry.Entry{ID: id, Address: "10.0.0.1", Port: 80, Weight: 1,
		Owner: registry.Owner{Cluster: "here", PodUID: "uid"}}
}

func put(id string) []registry.Change {
	return []registry.Change{{Op: registry.Put, Entry: entry(id)}}
}

func TestFaults(t *testing.T) {
	ctx := t.Context()
	r := memory.New()
	if err := r.Apply(ctx, "web", put("a")); err != nil {
		t.Fatal(err)
	}

	r.Break(memory.ReadOnly)
	if err := r.Apply(ctx, "web", put("b")); !errors.Is(err, registry.ErrPermanent) {
		t.Errorf("read-only: %v, want a permanent error", err)
	}

	r.Break(memory.Stale)
	if err := r.Apply(ctx, "web", put("c")); err != nil {
		t.Errorf("stale: %v", err)
	}
	if have, err := r.List(ctx, "web"); err != nil || len(have) != 1 {
		t.Errorf("stale: lists %v, %v; want what was there before", have, err)
	}

	r.Break(memory.Lossy)
	if err := r.Apply(ctx, "web", put("d")); !errors.Is(err, registry.ErrTransient) {
		t.Errorf("lossy: %v, want a transient error", err)
	}
	r.Break(memory.None)
	if have, err := r.List(ctx, "web"); err != nil || len(have) != 3 {
		t.Errorf("lists %v, %v; want a, c and d", have, err)
	}
}

func TestBusyKeepsWhatIsRemoved(t *testing.T) {
	ctx := t.Context()
	r := memory.New()
	r.Seed("web", entry("a"))
	remove := func() []registry.Entry {
		t.Helper()
		changes := []registry.Change{{Op: registry.Remove, Entry: r.Entries("web")[0]}}
		if err := r.Apply(ctx, "web", changes); err != nil {
			t.Fatal(err)
		}
		return r.Entries("web")
	}
	r.Break(memory.Busy)
	first, second := remove(), remove()
	if len(first) != 1 || first[0].Unsettled == "" || len(second) != 1 || second[0].Version != first[0].Version {
		t.Errorf("while it is busy %+v and then %+v is listed", first, second)
	}
	r.Break(memory.None)
	if left := remove(); len(left) != 0 {
		t.Errorf("%+v is left", left)
	}
}

func TestHangEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		r.Break(memory.Hang)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := r.List(ctx, "web"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, registry.ErrTransient) {
			t.Errorf("list: %v, want it transient and past its deadline", err)
		}
	})
}
