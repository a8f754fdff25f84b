// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/usher-dev/usher/test/cluster"
)

// startProxy starts a kube-proxy in the sandbox's network, which all nodes share. Its rules send
// packets for a Service's address to one of its Pods.
func (n *Node) startProxy(context.Context) error {
	if err := routeServices(); err != nil {
		return err
	}
	kubeconfig, err := n.Plane.UserKubeconfig("system:kube-proxy")
	if err != nil {
		return err
	}
	n.proxy, err = n.spawn("kube-proxy", n.options.Assets.KubeProxy, "--kubeconfig="+kubeconfig, "--hostname-override="+NodeName,
		"--proxy-mode=nftables",
		// The limits of connection tracking are the machine's.
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0", "-v=2")
	return err
}

// routeServices routes the Services' addresses: without a route, no packet would get as
// far as kube-proxy's rules.
func routeServices() error {
	_, services, err := net.ParseCIDR(cluster.ServiceRange)
	if err != nil {
		return err
	}
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("interface %s: %w", bridge, err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: services, Src: net.ParseIP(NodeAddress)}); err != nil {
		return fmt.Errorf("route %s: %w", services, err)
	}
	return nil
}
