// SPDX-License-Identifier: Apache-2.0

// Package registrytest is the suite that every connector must pass on a real server.
package registrytest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// callTimeout stands for the spec.timeout of a Registry.
	callTimeout = 5 * time.Second
	// downTimeout limits a call to a registry that is down.
	downTimeout = 2 * time.Second
	// recovery limits the time until a restored registry answers.
	recovery = 30 * time.Second
)

// Fixture is a connector with its server.
type Fixture struct {
	// Connector talks to the server.
	Connector registry.Connector
	// Seed writes an entry as a writer other than Usher.
	Seed func(t *testing.T, service, id string)
	// Break stops the server. Mend restores it with its entries, unless it Forgets.
	Break func() error
	Mend  func(ctx context.Context) error
	// Hang suspends the server, which keeps its connections open. Resume ends that. Both
	// are nil if a test cannot do so.
	Hang, Resume func() error
	// NoMetadata means that the registry cannot store metadata, and that listed entries
	// say so.
	NoMetadata bool
	// HoldsBack means that an entry of weight 0 stays and gets no callers.
	HoldsBack bool
	// Forgets means that a restored server has lost its entries.
	Forgets bool
	// Foreign is the ID of the entry that Seed writes, if the registry does not keep the one that it gets.
	Foreign string
	// OneOwner means that a service has the entries of one Registration of one cluster.
	OneOwner bool
	// AddressIsIdentity means that a service has at most one entry for an address and
	// port.
	AddressIsIdentity bool
}

// Run runs the suite. For each test, connect returns a connector to an empty server of
// its own, and cleans up afterwards.
func Run(t *testing.T, connect func(t *testing.T) Fixture) {
	tests := []struct {
		name string
		run  func(*harness)
	}{
		{"an unknown service is empty", testEmpty},
		{"register, read back, deregister", testRoundTrip},
		{"registering twice changes nothing", testIdempotent},
		{"deregistering twice is no error", testDeregisterTwice},
		{"weight, metadata and address can change", testUpdate},
		{"an entry is held back and comes back", testHoldBack},
		{"an outdated change is a conflict", testConflict},
		{"a foreign entry is listed and left alone", testForeign},
		{"two clusters share a service", testTwoClusters},
		{"a Pod of the same name is another instance", testSameName},
		{"services do not see each other", testServices},
		{"one refused change keeps no other back", testPartial},
		{"a batch of 300", testBatch},
		{"down is transient, and it recovers by itself", testDown},
		{"a server that hangs holds up no call", testHung},
		{"a cancelled context ends a call", testCancelled},
		{"ping", testPing},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := connect(t)
			t.Cleanup(func() {
				if err := s.Connector.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			s.Connector = timely{s.Connector}
			test.run(&harness{T: t, Fixture: s})
		})
	}
}

const service = "web"

// timely is a connector whose calls have as long as those of a Registry.
type timely struct{ registry.Connector }

// List implements registry.Connector.
func (c timely) List(ctx context.Context, service string) ([]registry.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.Connector.List(ctx, service)
}

// Apply implements registry.Connector.
func (c timely) Apply(ctx context.Context, service string, changes []registry.Change) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.Connector.Apply(ctx, service, changes)
}

// harness is a fixture, whose connector is timely.
type harness struct {
	*testing.T
	Fixture
}

// entry returns the entry of Pod web-<n> in the cluster.
func entry(cluster string, n int) registry.Entry {
	pod := fmt.Sprintf("web-%03d", n)
	return registry.Entry{
		ID: cluster + "." + pod, Address: fmt.Sprintf("10.0.%d.%d", n/250, n%250+1), Port: 8080, Weight: 10,
		Metadata: map[string]string{"zone": "a"},
		Owner: registry.Owner{
			Cluster: cluster, Namespace: "demo", Registration: "web", Pod: pod, PodUID: fmt.Sprintf("uid-%d", n),
		},
	}
}

func put(entries ...registry.Entry) []registry.Change { return changes(registry.Put, entries) }

func remove(entries ...registry.Entry) []registry.Change { return changes(registry.Remove, entries) }

func changes(op registry.Op, entries []registry.Entry) []registry.Change {
	out := make([]registry.Change, 0, len(entries))
	for _, e := range entries {
		out = append(out, registry.Change{Op: op, Entry: e})
	}
	return out
}

func (h *harness) apply(changes []registry.Change) {
	h.Helper()
	checktest.NoError(h.T, h.Connector.Apply(h.Context(), service, changes))
}

// put is Put, and remove is Remove.
func (h *harness) put(entries ...registry.Entry) {
	h.Helper()
	Put(h.T, h.Connector, entries...)
}

func (h *harness) remove(entries ...registry.Entry) {
	h.Helper()
	Remove(h.T, h.Connector, entries...)
}

// list returns the entries without their versions, and the versions by ID.
func (h *harness) list(service string) ([]registry.Entry, map[string]string) {
	h.Helper()
	entries := list(h.T, h.Connector, service)
	versions := map[string]string{}
	for i := range entries {
		if entries[i].Version == "" {
			h.Errorf("entry %s has no version", entries[i].ID)
		}
		versions[entries[i].ID] = entries[i].Version
		entries[i].Version = ""
	}
	if !slices.IsSortedFunc(entries, func(a, b registry.Entry) int { return strings.Compare(a.ID, b.ID) }) {
		h.Errorf("the list is not sorted by ID: %v", ids(entries))
	}
	return entries, versions
}

// shows checks that exactly these entries are listed.
func (h *harness) shows(want ...registry.Entry) map[string]string {
	h.Helper()
	have, versions := h.list(service)
	want = append([]registry.Entry{}, want...)
	for i := range want {
		if h.NoMetadata {
			want[i].NoMetadata, want[i].Metadata = true, nil
		}
	}
	checktest.Same(h.T, "the list", want, have)
	return versions
}

func ids(entries []registry.Entry) []string {
	var out []string
	for _, e := range entries {
		out = append(out, e.ID)
	}
	return out
}

// refused makes changes, and checks that exactly one is refused, with the mark.
func (h *harness) refused(changes []registry.Change, id string, mark error) {
	h.Helper()
	CheckRefused(h.T, "apply", h.Connector.Apply(h.Context(), service, changes), id, mark)
}

func testEmpty(h *harness) { h.shows() }

func testRoundTrip(h *harness) {
	a, b := entry("here", 1), entry("here", 2)
	b.Address, b.Metadata = "fd00::2", nil
	h.put(a, b)
	h.shows(a, b)
	h.remove(a)
	h.shows(b)
}

func testIdempotent(h *harness) {
	a := entry("here", 1)
	h.put(a)
	before := h.shows(a)
	h.apply(put(a))
	if after := h.shows(a); after[a.ID] != before[a.ID] {
		h.Errorf("the same entry again changed version %s to %s: callers hear of a change for nothing", before[a.ID], after[a.ID])
	}
}

func testDeregisterTwice(h *harness) {
	a := entry("here", 1)
	h.put(a)
	a.Version = h.shows(a)[a.ID]
	h.apply(remove(a))
	h.apply(remove(a))
	h.shows()
}

func testUpdate(h *harness) {
	a := entry("here", 1)
	h.put(a)
	before := h.shows(a)
	a.Weight, a.Address, a.Metadata = 20, "10.9.9.9", map[string]string{"zone": "b", "version": "2", "tags": "blue,canary"}
	h.put(a)
	if after := h.shows(a); after[a.ID] == before[a.ID] {
		h.Error("the version of a changed entry is the same as before")
	}
}

// testHoldBack takes an entry out of service without removing it.
func testHoldBack(h *harness) {
	if !h.HoldsBack {
		return
	}
	a := entry("here", 1)
	held := a
	held.Weight = 0
	h.put(a)
	before := h.shows(a)
	h.put(held)
	if after := h.shows(held); after[a.ID] == before[a.ID] {
		h.Error("the version of an entry that is held back is the same as before")
	}
	for _, next := range []registry.Entry{held, a, held} {
		h.put(next)
		before = h.shows(next)
	}
	h.remove(a)
	h.shows()
	// A removed entry cannot be held back.
	held.Version = before[a.ID]
	h.refused(put(held), a.ID, registry.ErrConflict)
	h.shows()
	// The next Pod with that address must not be held back with it.
	next := entry("here", 2)
	next.Address = a.Address
	h.put(next)
	h.shows(next)
}

func testConflict(h *harness) {
	a := entry("here", 1)
	h.put(a)
	old := h.shows(a)[a.ID]
	b := a
	b.Weight = 20
	h.put(b)

	late := a
	late.Weight, late.Version = 30, old
	h.refused(put(late), a.ID, registry.ErrConflict)
	h.refused(remove(late), a.ID, registry.ErrConflict)
	h.shows(b)
}

func testForeign(h *harness) {
	theirs := cmp.Or(h.Foreign, "theirs")
	h.Seed(h.T, service, "theirs")
	before, versions := h.list(service)
	if len(before) != 1 || before[0].ID != theirs || before[0].Owner != (registry.Owner{}) {
		h.Fatalf("the foreign entry is listed as %+v", before)
	}
	mine := entry("here", 1)
	mine.ID = theirs
	h.refused(put(mine), mine.ID, registry.ErrForeign)
	h.refused(remove(mine), mine.ID, registry.ErrForeign)
	after, versionsAfter := h.list(service)
	if diff := gocmp.Diff(before, after); diff != "" || versions[theirs] != versionsAfter[theirs] {
		h.Errorf("the foreign entry changed: %s", diff)
	}
}

func testTwoClusters(h *harness) {
	here, there := entry("here", 1), entry("there", 1)
	if h.AddressIsIdentity {
		there.Address = "10.0.8.1"
	}
	h.put(here)
	if h.OneOwner {
		h.refused(put(there), there.ID, registry.ErrForeign)
		h.shows(here)
		return
	}
	h.put(there)
	h.shows(here, there)

	thief := entry("there", 2)
	thief.ID = here.ID
	h.refused(put(thief), here.ID, registry.ErrForeign)
	h.refused(remove(thief), here.ID, registry.ErrForeign)

	h.shows(here, there)
	h.remove(here)
	h.shows(there)
}

func testSameName(h *harness) {
	first, second := entry("here", 1), entry("here", 1)
	second.ID, second.Owner.PodUID, second.Address = first.ID+".2", "uid-new", "10.0.0.77"
	h.put(first, second)
	h.shows(first, second)
	h.remove(first)
	h.shows(second)
}

func testServices(h *harness) {
	h.put(entry("here", 1))
	for _, other := range []string{service + "-2", service[:len(service)-1]} {
		if have, _ := h.list(other); len(have) != 0 {
			h.Errorf("service %s lists %v of service %s", other, ids(have), service)
		}
	}
}

func testPartial(h *harness) {
	a, b, c := entry("here", 1), entry("here", 2), entry("here", 3)
	h.put(b)
	late := b
	late.Weight, late.Version = 99, h.shows(b)[b.ID]+"9"
	h.refused(put(a, late, c), b.ID, registry.ErrConflict)
	h.shows(a, b, c)
}

func testBatch(h *harness) {
	var all []registry.Entry
	for n := range 300 {
		all = append(all, entry("here", n))
	}
	h.put(all...)
	h.shows(all...)
	h.remove(all[:299]...)
	h.shows(all[299])
}

func testDown(h *harness) {
	a := entry("here", 1)
	h.put(a)
	checktest.NoError(h.T, h.Break())
	began := time.Now()
	for name, call := range h.calls(entry("here", 2)) {
		Check(h.T, name+" while the registry is down", call(within(h.T, downTimeout)), registry.ErrTransient)
	}
	if took := time.Since(began); took > 4*downTimeout {
		h.Errorf("three calls that may take %s each took %s", downTimeout, took)
	}
	checktest.NoError(h.T, h.Mend(Bounded(h.T)))
	h.recovers()
	if h.Forgets {
		h.shows()
		h.put(a)
	}
	h.shows(a)
}

// recovers waits until the connector works again.
func (h *harness) recovers() {
	h.Helper()
	for end := within(h.T, recovery); h.Connector.Ping(within(h.T, downTimeout)) != nil; {
		if end.Err() != nil {
			h.Fatalf("the connector did not recover within %s", recovery)
		}
	}
}

// testHung makes several calls at once: each ends in time with a transient error, and the
// next call works when the server runs again.
func testHung(h *harness) {
	if h.Hang == nil {
		return
	}
	h.shows()
	checktest.NoError(h.T, h.Hang())
	began := time.Now()
	var all sync.WaitGroup
	for name, call := range h.calls(entry("here", 1)) {
		ctx := within(h.T, downTimeout)
		all.Go(func() { Check(h.T, name+" of a server that hangs", call(ctx), registry.ErrTransient) })
	}
	all.Wait()
	if took := time.Since(began); took > 2*downTimeout {
		h.Errorf("calls that may take %s took %s", downTimeout, took)
	}
	checktest.NoError(h.T, h.Resume())
	h.recovers()
	// The change may have reached the server.
	list(h.T, h.Connector, service)
}

func (h *harness) calls(e registry.Entry) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"ping":  h.Connector.Ping,
		"list":  func(ctx context.Context) error { _, err := h.Connector.List(ctx, service); return err },
		"apply": func(ctx context.Context) error { return h.Connector.Apply(ctx, service, put(e)) },
	}
}

func testCancelled(h *harness) {
	ctx, cancel := context.WithCancel(h.Context())
	cancel()
	for name, call := range h.calls(entry("here", 1)) {
		err := call(ctx)
		Check(h.T, name+" with a cancelled context", err, registry.ErrTransient)
		Check(h.T, name+" with a cancelled context", err, context.Canceled)
	}
	h.shows()
}

func testPing(h *harness) { Check(h.T, "ping", h.Connector.Ping(within(h.T, callTimeout)), nil) }
