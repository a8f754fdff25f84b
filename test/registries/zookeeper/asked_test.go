// SPDX-License-Identifier: Apache-2.0

package zookeeper_test

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	usherv1alpha1 "github.com/usher-dev/usher/api/usher/v1alpha1"
	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/internal/list"
	"github.com/usher-dev/usher/internal/registration/call"
	"github.com/usher-dev/usher/internal/registration/plan"
	"github.com/usher-dev/usher/internal/registration/registry"
	"github.com/usher-dev/usher/internal/registration/registry/registrytest"
	"github.com/usher-dev/usher/test/registries/internal/servers"
)

const stock = "org.example.Stock"

// TestDubboQos: an application with Dubbo's own client registers itself, leaves when its QoS server is asked to, goes on
// serving, and comes back. A caller with Dubbo's client sees the same as the connector.
func TestDubboQos(t *testing.T) {
	s := start(t)
	r := s.connect(t, usherv1alpha1.LayoutDubbo, nil)
	ports := servers.FreePorts(t, 2)
	caller(t, "provider", s.address, stock, strconv.Itoa(ports[0]), strconv.Itoa(ports[1]), "true")
	called := caller(t, "dubbo", s.address, stock, "1.0.0")
	until := func(what string, n int) {
		t.Helper()
		registrytest.Eventually(t, what, func() string {
			entries, err := r.List(registrytest.Bounded(t), stock)
			own := list.Only(entries, func(e registry.Entry) bool {
				return int(e.Port) == ports[0] && e.Weight > 0 && e.Owner == registry.Owner{}
			})
			return registrytest.Unless(err == nil && len(own) == n && len(called()) == n, fmt.Sprintf("listed: %v, %v; callers get %v", entries, err, called()))
		})
	}
	until("it has registered itself", 1)
	for range 2 {
		ask(t, ports[1], "/offline")
		until("it has left", 0)
		conn := checktest.Must((&net.Dialer{}).DialContext(registrytest.Bounded(t), "tcp", fmt.Sprintf("127.0.0.1:%d", ports[0])))(t) // it serves whom it has
		checktest.NoError(t, conn.Close())
		ask(t, ports[1], "/online")
		until("it is back", 1)
	}
}

// TestDubboQosRefuses: by default QoS answers its own host only, and the error says which setting changes that.
func TestDubboQosRefuses(t *testing.T) {
	s := start(t)
	r := s.connect(t, usherv1alpha1.LayoutDubbo, nil)
	ports := servers.FreePorts(t, 2)
	caller(t, "provider", s.address, stock, strconv.Itoa(ports[0]), strconv.Itoa(ports[1]), "false")
	registrytest.Until(t, "it has registered itself", func() bool {
		entries, err := r.List(registrytest.Bounded(t), stock)
		return err == nil && slices.ContainsFunc(entries, func(e registry.Entry) bool { return int(e.Port) == ports[0] })
	})
	const hint = "set dubbo.application.qos-accept-foreign-ip=true"
	err := request(t, foreign(t), ports[1], "/offline", hint)
	registrytest.CheckRefused(t, "from another address", err, "it", registry.ErrTransient, hint)
}

// foreign is an address of this machine that is not of the loopback interface: a process that connects to it has it, too.
func foreign(t *testing.T) netip.Addr {
	t.Helper()
	for _, address := range checktest.Must(net.InterfaceAddrs())(t) {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().Is4() && prefix.Addr().IsGlobalUnicast() {
			return prefix.Addr()
		}
	}
	t.Fatal("this machine has no address but that of the loopback interface")
	return netip.Addr{}
}

// ask asks the application's QoS server.
func ask(t *testing.T, port int, path string) {
	t.Helper()
	checktest.NoError(t, request(t, netip.MustParseAddr("127.0.0.1"), port, path, ""))
}

func request(t *testing.T, at netip.Addr, port int, path, hint string) error {
	t.Helper()
	change := registry.Change{Op: registry.TakeOut, Entry: registry.Entry{ID: "it"}}
	return call.New(nil).All(registrytest.Bounded(t), []registry.Change{change}, map[string]plan.Call{
		"it": {At: netip.AddrPortFrom(at, uint16(port)), Method: http.MethodGet, Path: path, Hint: hint},
	})
}
