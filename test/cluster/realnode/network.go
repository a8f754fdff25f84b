// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// bridge is the nodes' own interface. A bridge without ports works like a dummy
// interface, and every kernel that can run Pods has one; the kubelet refuses the
// loopback interface.
const bridge = "usher0"

// makeNetwork assigns the nodes' addresses in the sandbox.
func makeNetwork() error {
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}); err != nil {
		return fmt.Errorf("add a bridge (the kernel needs the module bridge): %w", err)
	}
	for name, addresses := range map[string][]string{"lo": nil, bridge: {NodeAddress, secondAddress, serviceAddress}} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		for _, address := range addresses {
			parsed, err := netlink.ParseAddr(address + "/32")
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(link, parsed); err != nil {
				return fmt.Errorf("address %s of %s: %w", address, name, err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
	}
	return nil
}
