// SPDX-License-Identifier: Apache-2.0

// Package memory is an in-process registry with the faults of real ones. It is the
// model for the other connectors.
package memory

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/usher-dev/usher/internal/registration/registry"
)

// Fault is a failure mode.
type Fault int

const (
	// None is no fault.
	None Fault = iota
	// Down fails each call at once, as transient.
	Down
	// Hang blocks every call until its context ends.
	Hang
	// ReadOnly refuses every Apply, as permanent.
	ReadOnly
	// Stale lists the entries from when the fault began, but applies changes.
	Stale
	// Lossy applies changes but reports a failure.
	Lossy
	// Busy has requests in flight to every instance. A removed or held back entry stays
	// listed, unsettled, until it is asked for again without the fault.
	Busy
)

// Registry implements registry.Connector.
type Registry struct {
	mu       sync.Mutex
	fault    Fault
	services map[string]map[string]registry.Entry
	stale    map[string][]registry.Entry
	version  int
	calls    Calls
}

// Calls counts the calls to the registry.
type Calls struct{ List, Apply, Ping int }

// New returns an empty registry.
func New() *Registry { return &Registry{services: map[string]map[string]registry.Entry{}} }

// Break makes every later call show the fault, until a Break with None.
func (r *Registry) Break(fault Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = fault
	r.stale = nil
	if fault == Stale {
		r.stale = map[string][]registry.Entry{}
		for service := range r.services {
			r.stale[service] = r.sorted(service)
		}
	}
}

// Calls returns how often each method has been called.
func (r *Registry) Calls() Calls {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

// Seed writes entries without any checks, as another writer would.
func (r *Registry) Seed(service string, entries ...registry.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, entry := range entries {
		r.put(service, entry)
	}
}

// Drop removes entries without any checks.
func (r *Registry) Drop(service string, ids ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		delete(r.services[service], id)
	}
}

// Entries returns the real entries, whatever List shows under a fault.
func (r *Registry) Entries(service string) []registry.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sorted(service)
}

// List implements registry.Connector.
func (r *Registry) List(ctx context.Context, service string) ([]registry.Entry, error) {
	if err := r.enter(ctx, func(c *Calls) { c.List++ }); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault == Stale {
		return slices.Clone(r.stale[service]), nil
	}
	return r.sorted(service), nil
}

// Apply implements registry.Connector.
func (r *Registry) Apply(ctx context.Context, service string, changes []registry.Change) error {
	if err := registry.Validate(service, changes, true); err != nil {
		return err
	}
	if err := r.enter(ctx, func(c *Calls) { c.Apply++ }); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault == ReadOnly {
		return registry.Permanent(errors.New("the registry is read-only"))
	}
	_, refused := registry.Decide(r.sorted(service), registry.Itself, changes, func(change registry.Change, current *registry.Entry) (any, error) {
		r.change(service, change, current)
		return nil, nil
	})
	if r.fault == Lossy {
		return registry.Transient(errors.New("the answer was lost"))
	}
	return refused
}

// change carries out a change that is left to make.
func (r *Registry) change(service string, change registry.Change, current *registry.Entry) {
	switch {
	case change.Op.Overrides():
		r.put(service, overridden(*current, change.Op == registry.TakeOut))
	case r.fault == Busy && current != nil && (change.Op == registry.Remove || change.Entry.Weight == 0):
		r.linger(service, *current, change)
	case change.Op == registry.Remove:
		delete(r.services[service], change.Entry.ID)
	default:
		r.put(service, change.Entry)
	}
}

// Ping implements registry.Connector.
func (r *Registry) Ping(ctx context.Context) error {
	return r.enter(ctx, func(c *Calls) { c.Ping++ })
}

// Close implements registry.Connector.
func (r *Registry) Close() error { return nil }

func (r *Registry) enter(ctx context.Context, count func(*Calls)) error {
	r.mu.Lock()
	fault := r.fault
	count(&r.calls)
	r.mu.Unlock()
	if fault == Hang {
		<-ctx.Done()
	}
	if err := ctx.Err(); err != nil {
		return registry.Transient(err)
	}
	if fault == Down {
		return registry.Transient(errors.New("connection refused"))
	}
	return nil
}

// overridden is an entry that an override keeps callers from, or one without.
func overridden(e registry.Entry, out bool) registry.Entry {
	e.Override, e.Weight, e.Hidden = out, 1, ""
	if out {
		e.Weight, e.Hidden = 0, "it is overridden"
	}
	return e
}

// Register writes an entry as its application does, which does not change an override. Heartbeats are the same.
func (r *Registry) Register(service string, entry registry.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(service, overridden(entry, r.services[service][entry.ID].Override))
}

// linger keeps an entry that has a request in flight.
func (r *Registry) linger(service string, current registry.Entry, change registry.Change) {
	next := current
	next.Unsettled = "it waits for 1 session"
	if change.Op == registry.Put {
		next.Weight = 0
	}
	if !next.Same(current) {
		r.put(service, next)
	}
}

func (r *Registry) put(service string, entry registry.Entry) {
	if r.services[service] == nil {
		r.services[service] = map[string]registry.Entry{}
	}
	r.version++
	entry.Version = strconv.Itoa(r.version)
	entry.Metadata = maps.Clone(entry.Metadata)
	r.services[service][entry.ID] = entry
}

func (r *Registry) sorted(service string) []registry.Entry {
	entries := r.services[service]
	out := make([]registry.Entry, 0, len(entries))
	for _, id := range slices.Sorted(maps.Keys(entries)) {
		entry := entries[id]
		entry.Metadata = maps.Clone(entry.Metadata)
		out = append(out, entry)
	}
	return out
}
