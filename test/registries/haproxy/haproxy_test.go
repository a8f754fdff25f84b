// SPDX-License-Identifier: Apache-2.0

package haproxy_test

import (
	"context"
	"testing"

	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
)

// conform runs the suite with one connector to several processes.
func conform(t *testing.T, addresses ...func(*proxy) string) {
	t.Helper()
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		var all []*proxy
		var where []string
		for _, address := range addresses {
			p := startProxy(t)
			all, where = append(all, p), append(where, address(p))
		}
		last := all[len(all)-1]
		return registrytest.Fixture{
			Connector: connect(t, where...),
			Seed: func(t *testing.T, service, id string) {
				// A server on one of them is enough to interfere.
				last.ask(t, "add server "+service+"/"+id+" 192.0.2.1:1")
			},
			Break: last.Kill,
			Mend: func(ctx context.Context) error {
				// The suite expects nothing to be left on any of them.
				for _, p := range all {
					if err := p.Restart(ctx); err != nil {
						return err
					}
				}
				return nil
			},
			NoMetadata: true,
			HoldsBack:  true,
			Forgets:    true,
		}
	})
}

func TestConformanceOverTCP(t *testing.T) { conform(t, (*proxy).tcp) }

func TestConformanceOverUnixSocket(t *testing.T) { conform(t, (*proxy).unix) }

// TestConformanceOfTwo uses two processes behind one Registry.
func TestConformanceOfTwo(t *testing.T) { conform(t, (*proxy).unix, (*proxy).tcp) }
