// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest/memory"
)

func TestConformance(t *testing.T) {
	registrytest.Run(t, func(*testing.T) registrytest.Fixture {
		r := memory.New()
		return registrytest.Fixture{
			Connector: r, HoldsBack: true,
			Seed: func(service, id string) {
				r.Seed(service, registry.Entry{ID: id, Address: "192.0.2.1", Port: 1})
			},
			Break:  func() error { r.Break(memory.Down); return nil },
			Mend:   func(context.Context) error { r.Break(memory.None); return nil },
			Hang:   func() error { r.Break(memory.Hang); return nil },
			Resume: func() error { r.Break(memory.None); return nil },
		}
	})
}

func TestSelfRegistered(t *testing.T) {
	registrytest.RunSelfRegistered(t, func(*testing.T) registrytest.SelfRegistered {
		r := memory.New()
		named := func(address string, port int32) registry.Entry {
			return registry.Entry{ID: fmt.Sprintf("web@%s:%d", address, port), Address: address, Port: port}
		}
		register := func(_ *testing.T, address string, port int32) { r.Register("web", named(address, port)) }
		return registrytest.SelfRegistered{
			Connector: r, Register: register, Beat: register,
			Leave: func(_ *testing.T, address string, port int32) { r.Drop("web", named(address, port).ID) },
			Callers: func(*testing.T) (callers []string) {
				for _, e := range r.Entries("web") {
					if e.Weight > 0 {
						callers = append(callers, e.HostPort())
					}
				}
				return callers
			},
		}
	})
}

func TestFaults(t *testing.T) {
	r := memory.New()
	for _, step := range []struct {
		fault memory.Fault
		put   string
		want  error
		lists int // -1: the list fails as well.
	}{
		{memory.None, "a", nil, 1},
		{memory.ReadOnly, "b", registry.ErrPermanent, 1},
		{memory.Stale, "c", nil, 1},
		{memory.Lossy, "d", registry.ErrTransient, -1},
		{memory.None, "e", nil, 4}, // Without b.
	} {
		r.Break(step.fault)
		registrytest.Check(t, "put "+step.put, registrytest.TryPut(t, r, registrytest.Entry(step.put)), step.want)
		if have, err := r.List(t.Context(), "web"); step.lists >= 0 && (err != nil || len(have) != step.lists) {
			t.Errorf("after %s: %v, %v are listed, want %d", step.put, have, err, step.lists)
		}
	}
}

func TestBusyKeepsWhatIsRemoved(t *testing.T) {
	r := memory.New()
	r.Seed("web", registrytest.Entry("a"))
	r.Break(memory.Busy)
	first := registrytest.Remove(t, r, registrytest.Entry("a"))
	second := registrytest.Remove(t, r, registrytest.Entry("a"))
	if len(first) != 1 || first[0].Unsettled == "" || len(second) != 1 || second[0].Version != first[0].Version {
		t.Errorf("while it is busy, it lists %+v and then %+v", first, second)
	}
	r.Break(memory.None)
	registrytest.CheckNone(t, "at the end", registrytest.Remove(t, r, registrytest.Entry("a")))
}
