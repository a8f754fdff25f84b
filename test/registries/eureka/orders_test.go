// SPDX-License-Identifier: Apache-2.0

package eureka_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/registration/call"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/orders"
	"github.com/usher-dev/usher/test/registries/internal/servers"
	"github.com/usher-dev/usher/test/servers/run"
)

// TestOrders has applications of Spring Cloud register themselves in Eureka, under callers with Eureka's own client.
func TestOrders(t *testing.T) { orders.Play(t, start(t).orders()) }

// orders is an application that registers itself with this server.
func (s *server) orders() orders.App {
	period := strconv.Itoa(int(orders.Beat.Seconds()))
	common := []string{
		"--eureka.client.service-url.defaultZone=" + s.Address + "/", "--eureka.client.registry-fetch-interval-seconds=" + period,
	}
	app := orders.SpringCloud(func(address string) []string {
		return slices.Concat(common, []string{
			"--eureka.instance.prefer-ip-address=true",
			"--eureka.instance.ip-address=" + address, "--eureka.instance.instance-id=" + address,
			"--eureka.instance.lease-renewal-interval-in-seconds=" + period,
			"--eureka.client.instance-info-replication-interval-seconds=" + period,
			"--eureka.client.initial-instance-info-replication-interval-seconds=0",
		})
	}, slices.Concat(common, []string{"--eureka.client.register-with-eureka=false"}))
	app.Name, app.Folder, app.Restart, app.Propagation = "eureka-orders", "orders", s.Restart, 2*cache+orders.Beat
	app.Registry = func(string) string {
		return fmt.Sprintf(`eureka: {address: "%s", responseCache: %s}`, s.Address, 2*cache)
	}
	return app
}

// TestActuator: an application of Spring Cloud leaves Eureka when its actuator is asked to, goes on serving, and comes
// back.
func TestActuator(t *testing.T) {
	s := start(t)
	application := s.orders()
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(servers.FreePorts(t, 1)[0]))
	app := run.HTTP{Address: "http://" + at.String()}
	serves := func(ctx context.Context) error {
		_, err := app.Do(ctx, http.MethodGet, "/", nil, nil)
		return err
	}
	servers.Start(t, run.Spec{
		Name: "orders", Path: "java", Ready: serves,
		Args: slices.Concat(orders.Flags, application.Java(t),
			application.Serves("orders", at.Addr().String(), int(at.Port()))),
	})
	r := s.connect(t)
	knows := application.Caller(t, "orders")
	until := func(what string, weight int32, callers int) {
		t.Helper()
		registrytest.Eventually(t, what, func() string {
			entries, err := r.List(registrytest.Bounded(t), "orders")
			is := err == nil && len(entries) == 1 && entries[0].HostPort() == at.String() && entries[0].Weight > 0 == (weight > 0)
			return registrytest.Unless(is && len(knows.Known()) == callers, fmt.Sprintf("listed: %v, %v; callers get %v", entries, err, knows.Known()))
		})
	}
	until("it has registered itself", 1, 1)
	for range 2 {
		ask(t, at, "OUT_OF_SERVICE")
		until("it has left", 0, 0)
		checktest.NoError(t, serves(t.Context()))
		ask(t, at, "UP")
		until("it is back", 1, 1)
	}
}

// ask asks an application's actuator for a status in Eureka.
func ask(t *testing.T, at netip.AddrPort, status string) {
	t.Helper()
	change := registry.Change{Op: registry.TakeOut, Entry: registry.Entry{ID: "it"}}
	request := plan.Call{At: at, Method: http.MethodPost, Path: "/actuator/serviceregistry", Body: `{"status":"` + status + `"}`}
	checktest.NoError(t, call.New(nil).All(registrytest.Bounded(t), []registry.Change{change}, map[string]plan.Call{"it": request}))
}
