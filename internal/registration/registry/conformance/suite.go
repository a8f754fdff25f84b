// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/usher-dev/usher/internal/registration/registry"
)

func testEmpty(h *harness) { h.shows() }

// testListed looks at nothing but what callers see. Its addresses are IPv4: Nacos checks instances by itself,
// and what has no route fails at once, in a later case as well.
func testListed(h *harness) {
	a, b := entry("here", 1), entry("here", 2)
	h.put(a)
	h.callersSee(a)
	h.put(b)
	h.callersSee(a, b)
	a.Weight = 20
	h.put(a)
	h.callersSee(a, b)
}

func testOwner(h *harness) {
	a := entry("here", 1)
	h.put(a)
	have, _ := h.list(h.Service)
	if found := find(have, a.ID); found == nil || found.Owner != a.Owner {
		h.Errorf("the owner is %+v in the list %+v, want %+v", ownerOf(found), have, a.Owner)
	}
}

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
		h.Errorf("the version of a changed entry is the same as before")
	}
}

// testHoldBack takes an entry out of service without removing it.
func testHoldBack(h *harness) {
	a := entry("here", 1)
	held := a
	held.Weight = 0
	h.put(a)
	before := h.shows(a)
	h.put(held)
	if after := h.shows(held); after[a.ID] == before[a.ID] {
		h.Errorf("the version of an entry that is held back is the same as before")
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
	h.Seed(h.Service, "theirs")
	before, versions := h.list(h.Service)
	found := slices.IndexFunc(before, func(e registry.Entry) bool { return e.ID == theirs })
	if found < 0 || before[found].Owner != (registry.Owner{}) {
		h.Fatalf("service %s lists %+v, want the entry %s without an owner", h.Service, before, theirs)
	}
	mine := entry("here", 1)
	mine.ID = theirs
	h.refused(put(mine), mine.ID, registry.ErrForeign)
	h.refused(remove(mine), mine.ID, registry.ErrForeign)
	after, versionsAfter := h.list(h.Service)
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
	for _, other := range []string{h.Service + "-2", h.Service[:len(h.Service)-1]} {
		if have, _ := h.list(other); len(have) != 0 {
			h.Errorf("service %s lists %v of service %s", other, ids(have), h.Service)
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
	NoError(h.T, h.Break())
	began := time.Now()
	for name, call := range h.calls(entry("here", 2)) {
		Check(h.T, name+" while the registry is down", call(h.within(downTimeout)), registry.ErrTransient)
	}
	if took := time.Since(began); took > 4*downTimeout {
		h.Errorf("three calls that may take %s each took %s", downTimeout, took)
	}
	NoError(h.T, h.Mend(h.within(patience)))
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
	for end := h.within(recovery); h.Connector.Ping(h.within(downTimeout)) != nil; {
		if end.Err() != nil {
			h.Fatalf("the connector did not recover within %s", recovery)
		}
	}
}

// testHung makes several calls at once: each ends in time with a transient error, and the
// next call works when the server runs again.
func testHung(h *harness) {
	h.shows()
	NoError(h.T, h.Hang())
	began := time.Now()
	var all sync.WaitGroup
	for name, call := range h.calls(entry("here", 1)) {
		ctx := h.within(downTimeout)
		all.Go(func() { Check(h.T, name+" of a server that hangs", call(ctx), registry.ErrTransient) })
	}
	all.Wait()
	if took := time.Since(began); took > 2*downTimeout {
		h.Errorf("calls that may take %s took %s", downTimeout, took)
	}
	NoError(h.T, h.Resume())
	h.recovers()
	// The change may have reached the server.
	h.list(h.Service)
}

func (h *harness) calls(e registry.Entry) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"ping":  h.Connector.Ping,
		"list":  func(ctx context.Context) error { _, err := h.Connector.List(ctx, h.Service); return err },
		"apply": func(ctx context.Context) error { return h.Connector.Apply(ctx, h.Service, put(e)) },
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

func testPing(h *harness) { Check(h.T, "ping", h.Connector.Ping(h.within(h.Timeout)), nil) }

// testAtOnce has several writers start from the same list.
func testAtOnce(h *harness) {
	const writers = 8
	for round := range 10 {
		a := entry("here", round)
		h.oneWins(a.ID, func(n int) registry.Entry { // all of them create it
			e := entry(fmt.Sprintf("here-%d", n), round)
			e.ID = a.ID
			return e
		}, writers)
		have, versions := h.list(h.Service)
		now := find(have, a.ID)
		if now == nil {
			h.Fatalf("%s is not listed, although one writer was not refused: %+v", a.ID, have)
		}
		h.oneWins(a.ID, func(n int) registry.Entry { // all of them change it
			e := *now
			e.Weight, e.Version = int32(100+n), versions[a.ID]
			return e
		}, writers)
	}
}

// oneWins has writers put their versions of an entry at the same moment.
func (h *harness) oneWins(id string, version func(n int) registry.Entry, writers int) {
	h.Helper()
	errs := make([]error, writers)
	var all sync.WaitGroup
	for n := range writers {
		all.Go(func() { errs[n] = h.Connector.Apply(h.Context(), h.Service, put(version(n))) })
	}
	all.Wait()
	made := 0
	for _, err := range errs {
		byID, rest := registry.ChangeErrors(err)
		NoError(h.T, rest)
		if byID[id] == nil {
			made++
		}
	}
	if made != 1 {
		h.Errorf("%d of %d writers got the entry %s, want one", made, writers, id)
	}
}
