// SPDX-License-Identifier: Apache-2.0

package consul_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/registries/internal/orders"
)

// TestOrders has applications of Spring Cloud register themselves with Consul's agent, which checks them, under callers
// with the same client.
func TestOrders(t *testing.T) { orders.Play(t, start(t, nil).orders(t)) }

// orders is an application that registers itself with the server's own agent.
func (s *server) orders(t *testing.T) orders.App {
	t.Helper()
	agent := checktest.Must(netip.ParseAddrPort(s.Address[len("http://"):]))(t)
	common := []string{
		"--spring.cloud.consul.host=" + agent.Addr().String(), fmt.Sprint("--spring.cloud.consul.port=", agent.Port()),
		// Otherwise the application is not Ready while Consul is down.
		"--management.health.consul.enabled=false",
	}
	app := orders.SpringCloud(func(address string) []string {
		return slices.Concat(common, []string{
			"--spring.cloud.consul.discovery.prefer-ip-address=true", "--spring.cloud.consul.discovery.ip-address=" + address,
			"--spring.cloud.consul.discovery.instance-id=orders-" + address,
			"--spring.cloud.consul.discovery.health-check-interval=" + orders.Beat.String(),
		})
	}, slices.Concat(common, []string{
		"--spring.cloud.consul.discovery.register=false", "--spring.cloud.consul.discovery.query-passing=true",
	}))
	app.Name, app.Folder, app.Restart, app.Propagation = "consul-orders", "orders", s.Restart, orders.Beat
	app.Registry = func(string) string {
		return fmt.Sprintf(`consul: {address: "%s", agents: {allowedAddresses: [127.0.0.0/8], scheme: http, port: %d}}`,
			s.Address, agent.Port())
	}
	return app
}
