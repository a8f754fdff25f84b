// SPDX-License-Identifier: Apache-2.0

// Package registrytest is the suite that every connector must pass on a real server. Its cases are those of package
// conformance, which the command usher-conformance plays, too.
package registrytest

import (
	"context"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/conformance"
)

const (
	// service is the service that the suite uses.
	service = conformance.Service
	// callTimeout stands for the spec.timeout of a Registry.
	callTimeout = conformance.CallTimeout
)

// Fixture is a connector with its server. Its fields are those of conformance.Fixture.
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
	// Atomic means that each change is compared and written in one step.
	Atomic bool
}

func (f Fixture) common(t *testing.T) conformance.Fixture {
	return conformance.Fixture{
		Connector: f.Connector, Seed: func(service, id string) { f.Seed(t, service, id) },
		Break: f.Break, Mend: f.Mend, Hang: f.Hang, Resume: f.Resume,
		NoMetadata: f.NoMetadata, HoldsBack: f.HoldsBack, Forgets: f.Forgets, Foreign: f.Foreign,
		OneOwner: f.OneOwner, AddressIsIdentity: f.AddressIsIdentity, Atomic: f.Atomic,
	}
}

// Run runs the suite. For each test, connect returns a connector to an empty server of
// its own, and cleans up afterwards.
func Run(t *testing.T, connect func(t *testing.T) Fixture) {
	for _, c := range conformance.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			f := connect(t).common(t)
			t.Cleanup(func() {
				if err := f.Connector.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			if c.Lacks == nil || c.Lacks(f) == "" {
				c.Run(t, f)
			}
		})
	}
}
