// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/usher-dev/usher/test/registries/internal/orders"
)

// TestOrders has applications of Spring Cloud Alibaba register themselves in Nacos, as ephemeral instances over a
// connection of its own client, under callers with that client.
func TestOrders(t *testing.T) { playOrders(t, start(t, nil)) }

func playOrders(t *testing.T, s *server) {
	t.Helper()
	orders.Play(t, s.orders())
}

// orders is an application that registers itself with this server.
func (s *server) orders() orders.App {
	common := []string{"--spring.cloud.nacos.discovery.server-addr=" + strings.TrimPrefix(s.Address, "http://")}
	app := orders.SpringCloud(func(address string) []string {
		return slices.Concat(common, []string{"--spring.cloud.nacos.discovery.ip=" + address})
	}, slices.Concat(common, []string{"--spring.cloud.nacos.discovery.register-enabled=false"}))
	app.Name, app.Folder, app.Restart, app.Propagation = "nacos-orders", "orders", s.Restart, 2*orders.Beat
	app.Registry = func(string) string { return fmt.Sprintf(`nacos: {address: "%s"}`, s.front) }
	return app
}
