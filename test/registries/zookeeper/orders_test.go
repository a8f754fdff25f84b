// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/cluster/build"
	"github.com/usher-dev/usher/test/cluster/ownnet"
	"github.com/usher-dev/usher/test/registries/internal/orders"
)

// TestOrders has applications of Dubbo register themselves in ZooKeeper, under callers with Dubbo's client. Only the
// application can take itself out: Dubbo's QoS server is asked to.
//
// Dubbo registers no loopback address, so Pods have others here: those of a network of the test's own.
func TestOrders(t *testing.T) {
	inside := ownnet.Enter(t, func() { // Inside, nothing can be fetched.
		_ = start(t).orders().Java(t)
		_ = checktest.Must(build.Ensure(t.Context(), build.All()...))(t)
	})
	if inside {
		orders.Play(t, start(t).orders())
	}
}

// orders is an application that registers itself with this server, under a root for each game: the name of its service
// is that of its interface.
func (s *server) orders() orders.App {
	return orders.App{
		Network: ownnet.Prefix(),
		Name:    "dubbo-orders", Folder: "orders", Source: "orders/DubboOrders.java",
		Restart: s.Restart, Propagation: dubboDelay + time.Second,
		Registry: func(game string) string {
			return fmt.Sprintf(`zookeeper: {servers: ["%s"], layout: Dubbo, path: "%s"}`, s.address, game)
		},
		Drain:   "application: {preset: DubboQos}",
		Service: func(string) string { return "org.example.Orders" },
		Serves: func(game, address string, port int) []string {
			return []string{s.address, game, address, strconv.Itoa(port)}
		},
		Calls:   func(game string) []string { return []string{s.address, game} },
		Healthy: "/",
	}
}
