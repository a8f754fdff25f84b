// SPDX-License-Identifier: Apache-2.0

// Package conformance is what every registry must do, case by case. The suite of the connectors
// (registrytest) and the command usher-conformance play the same cases, so it imports no package testing.
package conformance

import (
	"cmp"
	"context"
	"time"

	"github.com/usher-dev/usher/internal/registration/registry"
)

const (
	// CallTimeout stands for the spec.timeout of a Registry.
	CallTimeout = 5 * time.Second
	// Service is the service that cases use by default.
	Service = "web"
	// downTimeout limits a call to a registry that is down.
	downTimeout = 2 * time.Second
	// recovery limits the time until a restored registry answers.
	recovery = 30 * time.Second
	// patience limits every other wait.
	patience = 2 * time.Minute
	// again is how long Usher waits before it asks once more for the removal of an entry that drains.
	again = time.Second
)

// Fixture is a connector with its server.
type Fixture struct {
	// Connector talks to the server.
	Connector registry.Connector
	// Service is an empty service. Default: "web".
	Service string
	// Timeout is how long a call to List or Apply may take. Default: 5 s.
	Timeout time.Duration
	// Seed writes an entry as a writer other than Usher; nil if nobody can.
	Seed func(service, id string)
	// Break stops the server. Mend restores it with its entries, unless it Forgets. Both are nil
	// where nobody can do so.
	Break func() error
	Mend  func(ctx context.Context) error
	// Hang suspends the server, which keeps its connections open. Resume ends that. Both
	// are nil where nobody can do so.
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
	// OneService means that no other service can be asked for.
	OneService bool
	// Atomic means that each change is compared and written in one step, whoever else writes at that moment.
	Atomic bool
}

// Case is something that must hold.
type Case struct {
	// Name says what holds.
	Name string
	// Must is what a server must do, as the end of a sentence that begins with "the server must". It is empty if the
	// case is about nothing but the connector.
	Must string
	// After names cases without which this one would say nothing new.
	After []string
	// Lacks says why the case cannot be played with the fixture; it is empty if it can be.
	Lacks func(Fixture) string
	// Run plays the case.
	Run func(T, Fixture)
}

// The names of cases that others come after.
const (
	Empty     = "an unknown service is empty"
	Listed    = "what is written is listed at once"
	Owned     = "the owner is kept"
	RoundTrip = "register, read back, deregister"
	Held      = "an entry is held back and comes back"
	Conflict  = "an outdated change is a conflict"
	Foreign   = "a foreign entry is listed and left alone"
)

// Cases returns the cases in the order in which they are to be played.
func Cases() []Case {
	trip, conflict := []string{RoundTrip}, []string{Conflict}
	return []Case{
		{Empty, `answer {"entries": []} for a service that has none`, nil, nil, play(testEmpty)},
		{Listed, "list every entry as it was written last, as soon as apply has answered: not from a cache, not from a " +
			"replica that lags", []string{Empty}, nil, play(testListed)},
		{Owned, "store the owner with its entry, and list it unchanged", []string{Listed}, nil, play(testOwner)},
		{RoundTrip, "list an entry no more as soon as apply has removed it", []string{Owned}, nil, play(testRoundTrip)},
		{"registering twice changes nothing", "leave an entry alone, with its version, if a put changes nothing of it", trip, nil, play(testIdempotent)},
		{"deregistering twice is no error", "take the removal of an entry that is not there for done", trip, nil, play(testDeregisterTwice)},
		{"weight, metadata and address can change", "write all of an entry that a put changes, and change its version",
			trip, nil, play(testUpdate)},
		{Held, "keep an entry of weight 0, without callers", trip, holdsNothingBack, play(testHoldBack)},
		{Conflict, `refuse a change whose version is not the entry's, in an answer of status 200, with ` +
			`the code "conflict"`, trip, nil, play(testConflict)},
		{Foreign, `list entries that did not come from Usher, without an owner, and refuse ` +
			`changes to them with the code "foreign"`, trip, seedsNothing, play(testForeign)},
		{"two clusters share a service", `refuse changes to an entry whose owner's cluster differs, with the code "foreign", and ` +
			`keep the entries of both clusters`, trip, nil, play(testTwoClusters)},
		{"a Pod of the same name is another instance", "tell entries apart by their id alone, whatever their Pods are called",
			trip, nil, play(testSameName)},
		{"services do not see each other", "list the entries of the service that was asked for, and no others", trip, knowsNoOther, play(testServices)},
		{"one refused change keeps no other back", "make every change that it does not refuse", conflict, nil, play(testPartial)},
		{"a batch of 300", "make 300 changes, and list as many entries, within the timeout", trip, nil, play(testBatch)},
		{"of changes at once, one is made", "compare and write in one step: of several writers who saw the same list, one gets the " +
			"entry, and the others are refused", conflict, notAtomic, play(testAtOnce)},
		{"down is transient, and it recovers by itself", "", nil, breaksNothing, play(testDown)},
		{"a server that hangs holds up no call", "", nil, hangsNever, play(testHung)},
		{"a cancelled context ends a call", "", nil, nil, play(testCancelled)},
		{"ping", "", nil, nil, play(testPing)},
	}
}

// lacking returns why a case cannot be played, if that is so.
func lacking(has func(Fixture) bool, why string) func(Fixture) string {
	return func(f Fixture) string {
		if has(f) {
			return ""
		}
		return why
	}
}

var (
	holdsNothingBack = lacking(func(f Fixture) bool { return f.HoldsBack }, "the kind of registry holds no entry back")
	seedsNothing     = lacking(func(f Fixture) bool { return f.Seed != nil }, "no entry is known that somebody else wrote")
	breaksNothing    = lacking(func(f Fixture) bool { return f.Break != nil }, "nobody can stop the server")
	hangsNever       = lacking(func(f Fixture) bool { return f.Hang != nil }, "nobody can suspend the server")
	knowsNoOther     = lacking(func(f Fixture) bool { return !f.OneService }, "the server knows but one service")
	notAtomic        = lacking(func(f Fixture) bool { return f.Atomic }, "the kind of registry promises nothing of the kind")
)

// play gives a case a fixture whose calls end in time.
func play(run func(*harness)) func(T, Fixture) {
	return func(t T, f Fixture) {
		f.Service, f.Timeout = cmp.Or(f.Service, Service), cmp.Or(f.Timeout, CallTimeout)
		f.Connector = Timely(f.Connector, f.Timeout)
		run(&harness{T: t, Fixture: f})
	}
}

// Timely limits the calls to List and Apply of a connector.
func Timely(c registry.Connector, limit time.Duration) registry.Connector { return timely{c, limit} }

type timely struct {
	registry.Connector
	limit time.Duration
}

// List implements registry.Connector.
func (c timely) List(ctx context.Context, service string) ([]registry.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	return c.Connector.List(ctx, service)
}

// Apply implements registry.Connector.
func (c timely) Apply(ctx context.Context, service string, changes []registry.Change) error {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	return c.Connector.Apply(ctx, service, changes)
}
