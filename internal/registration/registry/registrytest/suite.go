// SPDX-License-Identifier: Apache-2.0

// Package registrytest is the suite that every connector must pass on a real server. Its cases are those of package
// conformance, which the command usher-conformance plays, too.
package registrytest

import (
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry/conformance"
)

const (
	// service is the service that the suite uses.
	service = conformance.Service
	// callTimeout stands for the spec.timeout of a Registry.
	callTimeout = conformance.CallTimeout
)

// Fixture is a connector with its server.
type Fixture = conformance.Fixture

// Run runs the suite. For each test, connect returns a connector to an empty server of
// its own, and cleans up afterwards.
func Run(t *testing.T, connect func(t *testing.T) Fixture) {
	for _, c := range conformance.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			f := connect(t)
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
