// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

func TestConformance(t *testing.T) {
	// All tests share one server; each has its own zone.
	b := startBind(t, 32)
	next := 0
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		z := zone(next)
		next++
		return registrytest.Fixture{
			Connector: b.connect(t, z),
			Seed: func(t *testing.T, service, id string) {
				b.insert(t, z, "_"+service+"._tcp."+z+". 1 IN SRV 0 1 1 "+id+"."+service+"."+z+".",
					id+"."+service+"."+z+". 1 IN A 192.0.2.1")
			},
			Break: b.Kill, Mend: b.Restart, Hang: b.Hang, Resume: b.Resume,
		}
	})
}
