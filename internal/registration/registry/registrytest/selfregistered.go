// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/conformance"
)

// SelfRegistered is a connector with its server, and applications that register themselves there in service "web", by
// what their own client sends.
type SelfRegistered struct {
	Connector registry.Connector
	// Register has an application register its address, Beat has it say that it lives, and register again if the server
	// asks for that. Leave deregisters it.
	Register, Beat, Leave func(t *testing.T, address string, port int32)
	// Callers are the addresses, with their ports, that a caller gets now, sorted.
	Callers func(t *testing.T) []string
	// Forget has the server lose what it has in memory; nil if it keeps all.
	Forget func(t *testing.T)
}

// RunSelfRegistered runs the part of the suite for connectors with the property Overrides. For each test, connect
// returns a connector to a server where the service "web" is empty.
func RunSelfRegistered(t *testing.T, connect func(t *testing.T) SelfRegistered) {
	for _, test := range []struct {
		name string
		run  func(selfRegistered)
	}{
		{"an application's entry is nobody's", selfRegistered.nobodys},
		{"an override lasts against heartbeats and registrations", selfRegistered.lasts},
		{"it comes back, and goes out again", selfRegistered.returns},
		{"twice is no error, and neither is an entry that is gone", selfRegistered.twice},
		{"an entry with another address is left alone", selfRegistered.moved},
		{"what Usher wrote is no application's", selfRegistered.ushers},
		{"an override ends for the next one with that address", selfRegistered.next},
		{"a server that forgets lists it as the application registers it", selfRegistered.forgets},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := connect(t)
			t.Cleanup(func() { checktest.NoError(t, s.Connector.Close()) })
			s.Connector = conformance.Timely(s.Connector, callTimeout)
			test.run(selfRegistered{t, s})
		})
	}
}

type selfRegistered struct {
	*testing.T
	SelfRegistered
}

// ownAddress and otherAddress are those of two applications.
const ownAddress, otherAddress, ownPort = "10.0.0.1", "10.0.0.2", 8080

// find returns the entry of an address; nil if none is listed.
func (s selfRegistered) find(address string) *registry.Entry {
	s.Helper()
	for _, e := range List(s.T, s.Connector) {
		if e.Address == address && e.Port == ownPort {
			return &e
		}
	}
	return nil
}

// register has an application register itself, and waits until it is listed in service.
func (s selfRegistered) register(address string) {
	s.Helper()
	s.Register(s.T, address, ownPort)
	s.until(address, true)
}

// until waits until an address is listed in service, or out of it, and callers agree.
func (s selfRegistered) until(address string, serves bool) {
	s.Helper()
	Eventually(s.T, address, func() string {
		s.Beat(s.T, address, ownPort)
		e := s.find(address)
		switch {
		case e == nil:
			return "it is not listed"
		case e.Owner != registry.Owner{}:
			return "it has an owner"
		case (e.Weight > 0) != serves || e.Override == serves || (e.Hidden == "") != serves:
			return "it is listed otherwise: " + e.Hidden
		}
		return Unless(s.called(address) == serves, "callers do not agree")
	})
}

func (s selfRegistered) called(address string) bool {
	want := registry.Entry{Address: address, Port: ownPort}.HostPort()
	for _, one := range s.Callers(s.T) {
		if one == want {
			return true
		}
	}
	return false
}

// apply makes one change of an application's entry, on behalf of the Pod with its address.
func (s selfRegistered) apply(op registry.Op, e registry.Entry) error {
	s.Helper()
	e.Owner = Entry("demo.web-1.0a").Owner
	return s.Connector.Apply(Bounded(s.T), service, []registry.Change{{Op: op, Entry: e}})
}

// change is apply for a change of ownAddress's entry that must succeed, and that is read back at once.
func (s selfRegistered) change(op registry.Op) {
	s.Helper()
	e := s.find(ownAddress)
	if e == nil {
		s.Fatalf("%s is not listed", ownAddress)
	}
	checktest.NoError(s.T, s.apply(op, *e))
	if after := s.find(ownAddress); after == nil || after.Override != (op == registry.TakeOut) {
		s.Fatalf("%s: it is listed as %+v", op, after)
	}
}

func (s selfRegistered) nobodys() {
	s.register(ownAddress)
	if e := s.find(ownAddress); e.Version == "" || e.Override {
		s.Errorf("the entry is %+v", e)
	}
}

func (s selfRegistered) lasts() {
	s.register(ownAddress)
	s.register(otherAddress)
	before := *s.find(ownAddress)
	s.change(registry.TakeOut)
	if after := s.find(ownAddress); after.Version == before.Version {
		s.Error("the version of an overridden entry is the same as before")
	}
	s.until(ownAddress, false)
	for range 3 {
		s.Beat(s.T, ownAddress, ownPort)
		s.Register(s.T, ownAddress, ownPort)
	}
	s.until(ownAddress, false)
	s.until(otherAddress, true)
}

func (s selfRegistered) returns() {
	s.register(ownAddress)
	for range 2 {
		s.change(registry.TakeOut)
		s.until(ownAddress, false)
		s.change(registry.BringBack)
		s.until(ownAddress, true)
	}
}

func (s selfRegistered) twice() {
	s.register(ownAddress)
	s.change(registry.TakeOut)
	s.change(registry.TakeOut)
	gone := *s.find(ownAddress)
	s.Leave(s.T, ownAddress, ownPort)
	Until(s.T, "the application to be gone", func() bool { return s.find(ownAddress) == nil })
	for _, op := range []registry.Op{registry.TakeOut, registry.BringBack} {
		checktest.NoError(s.T, s.apply(op, gone))
	}
	CheckNone(s.T, "after changes of an entry that is gone", List(s.T, s.Connector))
}

func (s selfRegistered) moved() {
	s.register(ownAddress)
	e := *s.find(ownAddress)
	e.Address = otherAddress
	CheckRefused(s.T, "another address", s.apply(registry.TakeOut, e), e.ID, registry.ErrConflict)
	s.until(ownAddress, true)
}

func (s selfRegistered) ushers() {
	mine := Entry("demo.web-2.0b")
	mine.Address = otherAddress
	Put(s.T, s.Connector, mine)
	CheckRefused(s.T, "an entry of Usher's", s.apply(registry.TakeOut, *s.find(otherAddress)), mine.ID, registry.ErrForeign)
	if e := s.find(otherAddress); e.Weight == 0 || e.Override {
		s.Errorf("the entry is %+v", e)
	}
}

func (s selfRegistered) next() {
	s.register(ownAddress)
	s.change(registry.TakeOut)
	s.Leave(s.T, ownAddress, ownPort)
	Until(s.T, "the application to be gone", func() bool { return s.find(ownAddress) == nil })
	s.Register(s.T, ownAddress, ownPort)
	Until(s.T, "the next one to be listed", func() bool { return s.find(ownAddress) != nil })
	if s.find(ownAddress).Override {
		s.change(registry.BringBack)
	}
	s.until(ownAddress, true)
}

func (s selfRegistered) forgets() {
	if s.Forget == nil {
		return
	}
	s.register(ownAddress)
	s.change(registry.TakeOut)
	s.Forget(s.T)
	Eventually(s.T, "the server", func() string {
		_, err := s.Connector.List(Bounded(s.T), service)
		return Unless(err == nil, "it does not list yet")
	})
	s.register(ownAddress) // without the override
	s.change(registry.TakeOut)
	s.until(ownAddress, false)
}
