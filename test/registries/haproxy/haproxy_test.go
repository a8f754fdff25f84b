// SPDX-License-Identifier: Apache-2.0

package haproxy_test

import (
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry/haproxy"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

func conform(t *testing.T, address func(*proxy) string) {
	t.Helper()
	registrytest.Run(t, func(t *testing.T) registrytest.Subject {
		p := startProxy(t)
		return registrytest.Subject{
			Connector: connect(t, haproxy.Options{Addresses: []string{address(p)}}),
			Seed: func(t *testing.T, service, id string) {
				if answer, err := p.ask("add server " + service + "/" + id + " 192.0.2.1:1"); err != nil {
					t.Fatal(answer, err)
				}
			},
			Break:      p.process.Break,
			Mend:       p.process.Mend,
			NoMetadata: true,
			HoldsBack:  true,
			Forgets:    true,
		}
	})
}

func TestConformanceOverTCP(t *testing.T) { conform(t, (*proxy).tcp) }

func TestConformanceOverUnixSocket(t *testing.T) { conform(t, (*proxy).unix) }

// TestConformanceOfTwo uses two processes behind one Registry.
func TestConformanceOfTwo(t *testing.T) {
	registrytest.Run(t, func(t *testing.T) registrytest.Subject {
		a, b := startProxy(t), startProxy(t)
		return registrytest.Subject{
			Connector: connect(t, haproxy.Options{Addresses: []string{a.unix(), b.tcp()}}),
			Seed: func(t *testing.T, service, id string) {
				// A server on one of them is enough to interfere.
				if answer, err := b.ask("add server " + service + "/" + id + " 192.0.2.1:1"); err != nil {
					t.Fatal(answer, err)
				}
			},
			Break: b.process.Break,
			Mend: func(t *testing.T) {
				b.process.Mend(t)
				// The suite expects nothing to be left.
				a.process.Mend(t)
			},
			NoMetadata: true,
			HoldsBack:  true,
			Forgets:    true,
		}
	})
}
