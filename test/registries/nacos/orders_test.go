// SPDX-License-Identifier: Apache-2.0

package nacos_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/usher-dev/usher/test/registries/internal/orders"
)

// TestOrders has applications of Spring Cloud Alibaba register themselves in Nacos, as ephemeral instances over a
// connection of its own client, under callers with that client.
func TestOrders(t *testing.T) { orders.Play(t, start(t, nil).orders()) }

// orders is an application that registers itself with this server.
func (s *server) orders() orders.App {
	common := []string{"--spring.cloud.nacos.discovery.server-addr=" + strings.TrimPrefix(s.Address, "http://")}
	return orders.App{
		Name: "nacos-orders", Folder: "orders", Restart: s.Restart, Propagation: 2 * orders.Beat,
		Registry: fmt.Sprintf(`nacos: {address: "%s"}`, s.Address),
		Calls: func(string, string, int) []string {
			return append(common, "--spring.cloud.nacos.discovery.register-enabled=false")
		},
		Registers: func(_, address string, _ int) []string {
			return append(common, "--spring.cloud.nacos.discovery.ip="+address)
		},
	}
}
